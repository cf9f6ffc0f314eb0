"""Commands that print text answer without torch, timm and what else takes seconds to import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("torch", "timm", "torchvision", "transformers", "scipy", "sklearn", "matplotlib", "faiss")
QUICK = str(Path(__file__).parents[2] / "dinoskip" / "configs" / "quick.yaml")
HELP = (
    ["--help"], ["run", "--help"], ["pretrain", "--help"],
    ["eval", "--help"], ["eval", "probe", "--help"], ["gallery", "--help"],
    ["features", "export", "--help"], ["analyze", "--help"], ["submit", "--help"], ["paper", "--help"],
)  # fmt: skip
COMMANDS = (
    ["settings"], ["settings", "probe"], ["plan", QUICK], ["plan", QUICK, "--assume-data"], ["status", QUICK],
    ["gc", QUICK], ["run", QUICK, "--dry-run"], ["init-study", "mine"], ["models", "list"],
    ["submit", "--dry-run", "--gpus-per-node", "0", "run", QUICK],
)  # fmt: skip
CODE = """
import sys
from dinoskip.cli import main
try:
    code = main(sys.argv[1:])
except SystemExit as end:
    code = end.code
print(sorted(set(sys.modules) & set({heavy!r})), code, file=sys.stderr)
"""


@pytest.mark.parametrize("words", [*HELP, *COMMANDS], ids=" ".join)
def test_a_command_that_prints_text_imports_nothing_heavy(words: list[str], tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", CODE.format(heavy=HEAVY), *words],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert ended.stderr.splitlines()[-1] == "[] 0", ended.stderr
