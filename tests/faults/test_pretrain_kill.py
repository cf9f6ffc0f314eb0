"""Pretraining killed with SIGKILL anywhere, in real processes, and started again: the same bits as if undisturbed."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import pytest

from dinoskip.console import read_metrics
from dinoskip.files import read_json, verify_manifest
from dinoskip.models.export import list_checkpoints
from dinoskip.training import checkpoint
from tests.helpers.launch import Child, children, rank_environments, run
from tests.helpers.tiny import STEPS, make_images, tensor_hashes, tiny_job

JOB = tiny_job(checkpoint_every_steps=2)
FINAL = f"step-{STEPS:08d}"


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_images(tmp_path_factory.mktemp("data") / "images")


@pytest.fixture(scope="module")
def straight(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("straight") / "run"
    code, log = run(JOB, images, run_dir)
    assert code == 0, log
    return run_dir


def assert_same_as(straight: Path, run_dir: Path) -> None:
    """Same tensors, same rows but for timing, nothing left over, all checkpoints intact."""
    assert tensor_hashes(run_dir / "checkpoints" / FINAL) == tensor_hashes(straight / "checkpoints" / FINAL)
    timing = {"images_per_s", "data_wait"}
    rows, expected = (
        [{k: v for k, v in row.items() if k not in timing} for row in read_metrics(folder / "metrics.jsonl")]
        for folder in (run_dir, straight)
    )
    assert rows == expected
    files = [sorted(p.relative_to(top).as_posix() for p in top.rglob("*")) for top in (run_dir, straight)]
    assert files[0] == files[1]
    assert all(verify_manifest(path) == [] for path in list_checkpoints(run_dir).values())
    assert read_json(run_dir / "status.json")["state"] == "done"


def rows_written(run_dir: Path) -> int:
    path = run_dir / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.parametrize("kills", [5, pytest.param(40, marks=pytest.mark.slow)])
def test_random_kills_change_nothing(kills: int, images: Path, straight: Path, tmp_path: Path) -> None:
    rng, run_dir, reached, killed = random.Random(5), tmp_path / "run", 0, 0
    for _ in range(kills):
        child = Child(JOB, images, run_dir, workers=rng.choice([0, 0, 2]))
        with children(child):
            target = min(reached + rng.randint(1, 3), STEPS - 1)
            child.wait_for(lambda target=target: rows_written(run_dir) >= target)
            time.sleep(rng.uniform(0, 0.1))
            child.signal(signal.SIGKILL)
            code = child.wait()
        killed += code == -signal.SIGKILL
        assert code in (0, -signal.SIGKILL), child.log
        newest = checkpoint.newest(run_dir)
        step = 0 if newest is None else read_json(newest / "state.json")["step"]
        assert step >= reached
        assert "damaged" not in child.log
        reached = step
    assert killed >= 3
    code, log = run(JOB, images, run_dir)
    assert code == 0, log
    assert_same_as(straight, run_dir)


@pytest.mark.parametrize(
    ("place", "resumed_from"),
    [
        ("step.before_update:kill@6", 4),
        ("checkpoint.before_head:kill@5", 4),
        ("checkpoint.before_manifest:kill@2", 2),
        ("checkpoint.before_publish:kill@3", 4),
        ("checkpoint.before_retention:kill@4", 8),
        ("retention.before_removal:kill@1", 6),
    ],
)
def test_a_kill_at_each_delicate_place_is_survived(
    place: str, resumed_from: int, images: Path, straight: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    code, log = run(JOB, images, run_dir, failpoint=place)
    assert code == -signal.SIGKILL, log
    assert all(verify_manifest(path) == [] for path in list_checkpoints(run_dir).values())
    code, log = run(JOB, images, run_dir)
    assert code == 0, log
    assert f"goes on after step {resumed_from} of {STEPS}" in log
    assert_same_as(straight, run_dir)


def test_workers_change_nothing(images: Path, straight: Path, tmp_path: Path) -> None:
    code, log = run(JOB, images, tmp_path / "run", workers=2)
    assert code == 0, log
    assert_same_as(straight, tmp_path / "run")


def test_a_directory_in_use_is_refused_and_a_dead_run_s_is_taken_over(images: Path, tmp_path: Path) -> None:
    first = Child(tiny_job(epochs=500), images, tmp_path / "run")
    with children(first):
        first.wait_for(lambda: rows_written(tmp_path / "run") > 0)
        code, log = run(JOB, images, tmp_path / "run")
        assert code == 5
        assert f"in use by process {first.process.pid}" in log
        first.signal(signal.SIGKILL)
        first.wait()
    code, log = run(tiny_job(epochs=500, warmup_epochs=2), images, tmp_path / "run")
    assert code == 2, "the lock of the dead run is taken over, its configuration still counts"
    assert "pretrain.warmup_epochs: 1 → 2" in log


def test_two_ranks_train_like_one_and_stop_together(images: Path, tmp_path: Path) -> None:
    job = tiny_job(skip=False, checkpoint_every_steps=None)  # no drop path: its noise is each rank's own
    assert run(job, images, tmp_path / "one")[0] == 0
    pair = [Child(job, images, tmp_path / "run", env=env) for env in rank_environments(2)]
    with children(*pair):
        pair[0].wait_for(lambda: rows_written(tmp_path / "run") >= 3)
        pair[1].signal(signal.SIGUSR2)
        assert [child.wait() for child in pair] == [75, 75], pair[0].log + pair[1].log
    stopped = read_json(tmp_path / "run" / "status.json")
    assert stopped["state"] == "preempted"
    assert 3 <= stopped["step"] < STEPS
    code, log = run(job, images, tmp_path / "run")  # and one rank goes on where two stopped
    assert code == 0, log
    ours, theirs = (read_metrics(tmp_path / name / "metrics.jsonl") for name in ("run", "one"))
    assert [row["step"] for row in ours] == [row["step"] for row in theirs]
    assert [row["loss"] for row in ours] == pytest.approx([row["loss"] for row in theirs], abs=1e-3)
    assert [row["loss"] for row in ours[:3]] == pytest.approx([row["loss"] for row in theirs[:3]], abs=1e-5)
