"""Commands that print text answer without torch, timm and what else takes seconds to import."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from dinoskip.plugins import found

HEAVY = ("torch", "timm", "torchvision", "transformers", "scipy", "sklearn", "matplotlib", "faiss")
QUICK = str(Path(__file__).parents[2] / "dinoskip" / "configs" / "quick.yaml")
HELP = (
    ["--help"], ["run", "--help"], ["pretrain", "--help"],
    ["eval", "--help"], ["eval", "probe", "--help"], ["gallery", "--help"],
    ["features", "export", "--help"], ["submit", "--help"],
    *([name, "--help"] for group, name in found() if group == "commands"),
)  # fmt: skip
COMMANDS = (
    ["settings"], ["settings", "probe"], ["plan", QUICK], ["plan", QUICK, "--assume-data"], ["status", QUICK],
    ["gc", QUICK], ["run", QUICK, "--dry-run"], ["init-study", "mine"], ["models", "list"],
    ["submit", "--dry-run", "--gpus-per-node", "0", "run", QUICK],
)  # fmt: skip
CODE = """
import json, sys
from dinoskip.cli import main
for words in json.loads(sys.argv[1]):
    try:
        code = main(words)
    except SystemExit as end:
        code = end.code
    print("ended:", json.dumps([words, code, sorted(set(sys.modules) & set({heavy!r}))]), file=sys.stderr)
"""


def test_commands_that_print_text_import_nothing_heavy(tmp_path: Path) -> None:
    """One process runs all: the first list that is not empty belongs to the command at fault."""
    every = [*HELP, *COMMANDS]
    ended = subprocess.run(
        [sys.executable, "-c", CODE.format(heavy=HEAVY), json.dumps(every)],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    lines = [line for line in ended.stderr.splitlines() if line.startswith("ended: ")]
    found = [json.loads(line.removeprefix("ended: ")) for line in lines]
    assert found == [[words, 0, []] for words in every]
