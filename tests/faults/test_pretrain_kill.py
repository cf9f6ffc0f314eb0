"""Pretraining killed with SIGKILL anywhere, in real processes, and started again: the same bits as if undisturbed."""

from __future__ import annotations

import json
import random
import signal
import time
from pathlib import Path

import pytest

from dinoskip.io.files import read_json, verify_manifest
from dinoskip.settings.specs import list_checkpoints
from dinoskip.training import checkpoint
from tests.helpers.launch import Child, children, rank_environments, run, run_ranks
from tests.helpers.tiny import STEPS, assert_same_run, count_rows, rows_of, tensor_hashes, tiny_job

JOB = tiny_job(checkpoint_every_steps=2)


@pytest.fixture(scope="module")
def straight(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("straight") / "run"
    code, log = run(JOB, images, run_dir)
    assert code == 0, log
    return run_dir


def kill_once(images: Path, run_dir: Path, rng: random.Random, reached: int) -> tuple[int, bool]:
    """Start, kill somewhere after the step reached; return the step of the newest checkpoint, and if it was killed."""
    child = Child(JOB, images, run_dir, workers=rng.choice([0, 0, 0, 2]))
    with children(child):
        target = min(reached + rng.randint(1, 3), STEPS - 1)
        child.wait_for(lambda: count_rows(run_dir) >= target)
        time.sleep(rng.uniform(0, 0.1))
        child.signal(signal.SIGKILL)
        code = child.wait()
    assert code in (0, -signal.SIGKILL), child.log
    assert "damaged" not in child.log
    newest = checkpoint.newest(run_dir).path
    return (0 if newest is None else read_json(newest / "state.json")["step"]), code != 0


@pytest.mark.parametrize(
    "kills", [3, pytest.param(20, marks=pytest.mark.slow), pytest.param(40, marks=pytest.mark.slow)]
)
def test_ckpt_sigkill_fuzz(kills: int, images: Path, straight: Path, tmp_path: Path) -> None:
    """The number of kills is fixed: a run that ends before the last of them is begun again in another directory."""
    rng, killed, rounds = random.Random(5), 0, 0
    while killed < kills:
        run_dir, reached, rounds = tmp_path / f"run{rounds}", 0, rounds + 1
        while killed < kills and reached < STEPS:
            step, hit = kill_once(images, run_dir, rng, reached)
            assert step >= reached, "the newest checkpoint never goes back"
            reached, killed = step, killed + hit
        code, log = run(JOB, images, run_dir)
        assert code == 0, log
        assert_same_run(straight, run_dir)


@pytest.mark.parametrize(
    ("place", "resumed_from"),
    [
        pytest.param("step.before_update:kill@6", 4, marks=pytest.mark.slow),
        pytest.param("checkpoint.before_save:kill@3", 4, marks=pytest.mark.slow),
        pytest.param("checkpoint.before_head:kill@5", 4, marks=pytest.mark.slow),
        ("checkpoint.before_manifest:kill@2", 2),
        ("checkpoint.before_publish:kill@3", 4),
        pytest.param("checkpoint.before_retention:kill@4", 8, marks=pytest.mark.slow),
        ("retention.before_removal:kill@1", 6),
    ],
)
def test_ckpt_crash_before_commit(place: str, resumed_from: int, images: Path, straight: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    code, log = run(JOB, images, run_dir, failpoint=place)
    assert code == -signal.SIGKILL, log
    assert all(verify_manifest(path) == [] for path in list_checkpoints(run_dir).values())
    code, log = run(JOB, images, run_dir)
    assert code == 0, log
    assert f"goes on after step {resumed_from} of {STEPS}" in log
    assert_same_run(straight, run_dir)


@pytest.mark.slow  # a rank that dies ends the other in test_rank_loss
def test_ckpt_crash_before_commit_ends_the_other_rank(images: Path, tmp_path: Path) -> None:
    began = time.monotonic()
    made = [
        Child(JOB, images, tmp_path / "run", env=env, failpoint="" if rank else "checkpoint.before_manifest:kill@2")
        for rank, env in enumerate(rank_environments(2))
    ]
    with children(*made):
        made[0].ends(-signal.SIGKILL)
        made[1].ends(75, "error: rank 0 on ", "; the same command goes on from step 2")
    assert time.monotonic() - began < 60
    assert [path.name for path in list_checkpoints(tmp_path / "run").values()] == ["step-00000002"]
    outcomes = run_ranks(2, JOB, images, tmp_path / "run")
    assert [code for code, _ in outcomes] == [0, 0], outcomes
    assert f"goes on after step 2 of {STEPS}" in outcomes[0][1]


def test_resume_bitwise_2proc(images: Path, tmp_path: Path) -> None:
    """Both ranks killed at a random step, and one rank alone: the run goes on to the bits of an undisturbed pair."""
    straight, run_dir, rng = tmp_path / "straight", tmp_path / "run", random.Random(1)
    assert [code for code, _ in run_ranks(2, JOB, images, straight)] == [0, 0]
    for victims in ((0, 1), (1,)):
        pair = [Child(JOB, images, run_dir, env=env) for env in rank_environments(2)]
        with children(*pair):
            target = count_rows(run_dir) + rng.randint(1, 3)
            pair[0].wait_for(lambda target=target: count_rows(run_dir) >= target)
            for victim in victims:
                pair[victim].signal(signal.SIGKILL)
            codes = [child.wait() for child in pair]
        assert [codes[victim] for victim in victims] == [-signal.SIGKILL] * len(victims), codes
    assert [code for code, _ in run_ranks(2, JOB, images, run_dir)] == [0, 0]
    assert_same_run(straight, run_dir)


def test_resume_bitwise_across_numbers_of_workers(images: Path, straight: Path, tmp_path: Path) -> None:
    for workers, place in ((0, "step.before_update:kill@6"), (2, "step.before_update:kill@5"), (1, "")):
        code, log = run(JOB, images, tmp_path / "run", workers=workers, failpoint=place)
        assert code == (-signal.SIGKILL if place else 0), log
    assert_same_run(straight, tmp_path / "run")


def test_resume_metrics_log(images: Path, straight: Path, tmp_path: Path) -> None:
    """Killed between a row and its checkpoint, the last line torn, and a column new: history stays, nothing twice."""
    run_dir, metrics = tmp_path / "run", tmp_path / "run" / "metrics.jsonl"
    assert run(JOB, images, run_dir, failpoint="checkpoint.before_save:kill@3")[0] == -signal.SIGKILL
    assert [row["step"] for row in rows_of(run_dir)] == [1, 2, 3, 4, 5, 6]
    lines = metrics.read_text().splitlines(keepends=True)
    old = {key: value for key, value in json.loads(lines[0]).items() if key != "momentum"}  # of an older version
    metrics.write_text(json.dumps(old) + "\n" + "".join(lines[1:]) + '{"step": 7, "epo')
    code, log = run(JOB, images, run_dir)
    assert code == 0, log
    assert f"{metrics}:7: skipped a damaged line" in log
    expected = rows_of(straight)
    del expected[0]["momentum"]
    assert rows_of(run_dir) == expected
    assert tensor_hashes(run_dir / "checkpoints" / f"step-{STEPS:08d}") == tensor_hashes(
        straight / "checkpoints" / f"step-{STEPS:08d}"
    )
