"""Nodes that read a checkpoint begin when the training has published it, with the keys that they have afterwards."""

from __future__ import annotations

import shutil
import time
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dinoskip.errors import DinoskipError
from dinoskip.io.files import MANIFEST, read_manifest, write_text
from dinoskip.pipeline import ahead
from dinoskip.pipeline.executor import ForeignWorkers
from dinoskip.pipeline.graph import Node
from dinoskip.pipeline.runner import Runner, Spread
from dinoskip.pipeline.stage import Stage, Task

PATIENCE = 60.0  # seconds: the test fails after them, and passes long before


def _train(task: Task) -> None:
    """Publish epoch 1, and go on only when it has been evaluated, where that is asked for."""
    write_text(task.out / "ep1", "one")
    until = time.monotonic() + PATIENCE
    while task.runtime["waits"] and not Path(task.runtime["mark"]).exists():
        if time.monotonic() > until:
            raise DinoskipError("nobody has evaluated epoch 1")
        time.sleep(0.02)
    write_text(task.out / "ep1", task.runtime["ends_with"])
    write_text(task.out / "ep2", "two")


def _copy(task: Task) -> None:
    shutil.copyfile(task.inputs["run"] / task.settings["of"], task.out / "weights")


def _evaluate(task: Task) -> None:
    text = (task.inputs["weights"] / "weights").read_text()
    write_text(task.out / "rows", text)
    write_text(Path(task.runtime["mark"]), text)


def _is_there(settings: Any, run: Path) -> bool:
    return bool((run / settings["of"]).is_file())


STAGES = {
    "train": Stage("train", _train, resumes=True, together=True),
    "weights": Stage("weights", _copy, of_unfinished=_is_there),
    "evaluate": Stage("evaluate", _evaluate),
}


def threads() -> Executor:
    return ThreadPoolExecutor(2)


def run(study: Path, *, spread: bool, ends_with: str = "one") -> dict[str, str]:
    runtime = {"mark": str(study.with_name(f"{study.name}.mark")), "waits": spread, "ends_with": ends_with}
    nodes = [Node("train/a", "train", {}, runtime=runtime)]
    for epoch in ("ep1", "ep2"):
        nodes.append(Node(f"weights/{epoch}", "weights", {"of": epoch}, {"run": "train/a"}))
        nodes.append(Node(f"evaluate/{epoch}", "evaluate", {}, {"weights": f"weights/{epoch}"}, runtime=runtime))
    workers = (lambda: Spread(ForeignWorkers(f"{__name__}:threads", 2), retries=0)) if spread else None
    return Runner(study, nodes, STAGES, device="cpu").run({node.id for node in nodes}, workers)


def outputs(study: Path) -> dict[str, tuple[str, str]]:
    found = [read_manifest(path.parent) for path in study.glob(f"stages/**/{MANIFEST}")]
    return {manifest.info["node"]: (manifest.info["key"], manifest.hash) for manifest in found}


def test_an_epoch_is_evaluated_while_the_training_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "EVERY", 0.0)
    happened = run(tmp_path / "spread", spread=True)
    assert set(happened.values()) == {"done"}
    assert set(run(tmp_path / "alone", spread=False).values()) == {"done"}
    assert outputs(tmp_path / "spread") == outputs(tmp_path / "alone")
    assert not list(tmp_path.rglob("*ahead*"))


def test_weights_that_are_others_in_the_end_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "EVERY", 0.0)
    with pytest.raises(DinoskipError, match="weights/ep1"):
        run(tmp_path / "spread", spread=True, ends_with="other")
