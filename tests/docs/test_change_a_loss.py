"""docs/change_a_loss.md as it stands there: the comparison of losses, and a training by its plug-in."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import torch

from tests.helpers.commands import dinoskip
from tests.helpers.documented import SMALLER
from tests.helpers.tiny import make_images

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "change_a_loss.md").read_text()
PLAIN, FILE = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
(COMMAND,) = re.findall(r"```sh\ndinoskip (.*?)\n```", TEXT, flags=re.DOTALL)


def test_the_plain_loss_is_ours() -> None:
    values: dict[str, Any] = {}
    exec(compile(PLAIN, "change_a_loss.md", "exec"), values)
    assert values["by_hand"].abs().max() > 0
    torch.testing.assert_close(values["by_autograd"], values["by_hand"])


def test_a_network_is_trained_by_the_second_loss(tmp_path: Path) -> None:
    make_images(tmp_path / "photos", 8)
    (tmp_path / "memax.py").write_text(FILE)
    small = [*shlex.split(SMALLER["pretrain"]), "--device", "cpu", "-q"]
    done = dinoskip(*shlex.split(COMMAND), *small, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "runs/memax/metrics.jsonl").read_text().splitlines()]
    entropies = [row["mean_entropy"] for row in rows if "mean_entropy" in row]
    assert entropies
    assert all(0 < value <= 4.16 for value in entropies), "ln 64 nats at most"
