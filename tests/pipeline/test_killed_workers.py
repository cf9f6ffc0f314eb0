"""A worker is killed in each stage of a study: another begins the node again, and the rows are those of a quiet run."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

import pytest

from dinoskip.cli import main
from dinoskip.io.files import write_text
from dinoskip.io.locks import holder_of
from dinoskip.pipeline.executor import LocalWorkers, places
from dinoskip.pipeline.making import Made
from dinoskip.pipeline.runner import Spread
from dinoskip.pipeline.scheduling import Order
from dinoskip.pipeline.study import build_nodes, load_study
from dinoskip.pipeline.study_runner import study_runner
from tests.helpers.study import TINY


class KillingWorkers(LocalWorkers):
    """Workers of this machine of which one is killed while it holds the first node of each stage."""

    def __init__(self, study: Path) -> None:
        super().__init__(study, places(2, [], threads=1))
        self.killed: dict[str, int] = {}
        self.met = set[str]()

    def submit(self, orders: Sequence[Order]) -> list[Future[Made]]:
        futures = super().submit(orders)
        ((work, stage),) = orders
        if stage.name not in self.met:
            self.met.add(stage.name)
            threading.Thread(target=self._kill, args=(stage.name, work.place, futures[0]), daemon=True).start()
        return futures

    def _kill(self, stage: str, place: Path, future: Future[Made]) -> None:
        while not future.done():
            pid = (holder_of(place) or {}).get("pid") if (place / ".lock").exists() else None
            if pid is not None and pid != os.getpid():
                self.killed[stage] = pid
                os.kill(pid, signal.SIGKILL)
                return
            time.sleep(0.002)


def rows(folder: Path) -> dict[str, bytes]:
    return {path.parents[1].relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("rows.json")}


@pytest.mark.slow  # a study twice, and a new process for each that is killed
def test_a_worker_killed_in_each_of_ten_stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    write_text(tmp_path / "tiny.yaml", TINY)
    config = str(tmp_path / "tiny.yaml")
    assert main(["run", config, f"output={tmp_path / 'alone'}", "--device", "cpu", "-q"]) == 0
    study, variants = load_study(config, [f"output={tmp_path / 'spread'}"])
    nodes = build_nodes(study, variants)
    runner = study_runner(study, variants, nodes, device="cpu", accept=[])
    engine = KillingWorkers(study.directory)
    happened = runner.run({node.id for node in nodes}, lambda: Spread(engine, retries=2))
    assert set(happened.values()) <= {"done", "cached"}  # one that had published it when it was killed: cached
    assert len(engine.killed) >= 10, engine.killed
    assert len(set(engine.killed.values())) == len(engine.killed), "each was another process"
    of_stages = {name: text for name, text in rows(tmp_path / "spread/tiny/stages").items()}
    assert of_stages == rows(tmp_path / "alone/tiny/stages")
    assert len(of_stages) == 8, "of four tasks and two networks"
