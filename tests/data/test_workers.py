from __future__ import annotations

import multiprocessing
import os
import time
from multiprocessing.process import parent_process
from pathlib import Path

from dinoskip.data.workers import start_worker, wait_advice
from tests.helpers.system import wait_until_empty

FORK = multiprocessing.get_context("fork")


def _worker() -> None:
    parent = parent_process()
    while parent is not None and os.getppid() == parent.pid:
        time.sleep(0.01)
    start_worker(0)
    time.sleep(60)


def _trainer(forked: str) -> None:
    os.setsid()
    FORK.Process(target=_worker).start()
    Path(forked).touch()
    time.sleep(60)


def test_a_worker_whose_parent_is_killed_before_it_has_begun_ends(tmp_path: Path) -> None:
    trainer = FORK.Process(target=_trainer, args=(str(tmp_path / "forked"),))
    trainer.start()
    while not (tmp_path / "forked").exists():
        time.sleep(0.01)
    trainer.kill()
    trainer.join()  # with a bound it would wait for the worker, which has inherited its pipe
    assert trainer.pid is not None
    assert wait_until_empty(trainer.pid, 10) == []


def test_compute_bound_needs_no_advice() -> None:
    line = wait_advice(0.02, mode="crops", workers=1, cores=8)
    assert " 2% " in line
    assert "try" not in line


def test_waiting_names_what_can_help_and_nothing_else() -> None:
    line = wait_advice(0.38, mode="crops", workers=2, cores=8)
    assert " 38% " in line
    assert "more workers: 2 of 8 processors read" in line
    assert "mode decode" in line
    assert "\n" not in line
    full = wait_advice(0.38, mode="decode", workers=8, cores=8)
    assert "more workers" not in full
    assert "mode decode" not in full
    assert "data pack" in full
    assert "workers" not in wait_advice(0.38, mode="resident")
    plain = wait_advice(0.38, mode=None, workers=8, cores=8)
    assert "try" not in plain
    assert wait_advice(0.38, mode=None, workers=2, cores=8) == f"{plain} (try more workers: 2 of 8 processors read)"
