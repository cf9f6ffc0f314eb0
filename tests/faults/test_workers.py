"""Data workers that die, hang or find no shared memory: every rank ends soon, in one line, with nobody left."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

from tests.helpers.launch import run, run_ranks
from tests.helpers.system import can_mount, small_disk
from tests.helpers.tiny import tiny_job

JOB = tiny_job(checkpoint_every_steps=2)
TIMEOUT = 3


def impatient() -> None:
    """Believe a worker to hang after three seconds."""
    from dinoskip.data import workers

    workers.WORKER_TIMEOUT_S = TIMEOUT


def named(log: str, what: str) -> bool:
    """Whether the message names the process and eight images at most."""
    return bool(
        re.search(rf"error: a data worker \(process \d+\) {what}.*near images (image \d\d.png(, |:)){{1,8}}", log)
    )


@pytest.mark.parametrize(  # that a killed one is noticed is tested in tests/data/test_loader.py
    ("action", "what"),
    [pytest.param("kill", "died", marks=pytest.mark.slow), ("hang", f"hangs, for {TIMEOUT} s")],
)
def test_worker_death_and_hang(action: str, what: str, images: Path, tmp_path: Path) -> None:
    began, run_dir = time.monotonic(), tmp_path / "run"
    code, log = run(JOB, images, run_dir, workers=1, failpoint=f"worker.before_read:{action}@10", prepare=impatient)
    assert code == 3, log
    assert named(log, what), log
    assert time.monotonic() - began < TIMEOUT + 60
    assert run(JOB, images, run_dir)[0] == 0


@pytest.mark.slow
@pytest.mark.parametrize("action", ["kill", "hang"])
def test_worker_death_and_hang_on_two_ranks(action: str, images: Path, tmp_path: Path) -> None:
    """Both ranks' workers: both say so. Whichever rank is not the first to end may find the other gone instead."""
    began = time.monotonic()
    outcomes = run_ranks(2, JOB, images, tmp_path / "run", workers=1, failpoint=f"worker.before_read:{action}@10",
                         prepare=impatient)  # fmt: skip
    assert time.monotonic() - began < TIMEOUT + 60
    assert {code for code, _ in outcomes} <= {1, 3}, outcomes
    assert any(code == 3 and "a data worker" in log for code, log in outcomes), outcomes


def no_shared_memory() -> None:
    small_disk("/dev/shm", 65536)


@pytest.mark.skipif(os.geteuid() != 0 or not can_mount(), reason="only root may mount, and not everywhere")
def test_worker_death_and_hang_with_shared_memory_full(images: Path, tmp_path: Path) -> None:
    code, log = run(JOB, images, tmp_path / "run", workers=1, prepare=no_shared_memory)
    assert code == 3, log
    assert "a data worker ran out of shared memory (/dev/shm)" in log
