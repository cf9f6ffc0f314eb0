"""Several ranks in real processes (gloo): they equal one, go on as more or fewer, and refuse to differ."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

from dinoskip.io.files import load_tensors, read_json
from dinoskip.training import PretrainJob
from tests.helpers.launch import Child, children, rank_environments, run_ranks
from tests.helpers.tiny import STEPS, count_rows, rows_of, tiny_job

LOSS = 1e-5  # between runs that add up in another order, all through a run of so small a learning rate
FINAL = f"step-{STEPS:08d}"


def job_of(
    accumulate: int = 1, parallel: str = "ddp", batch: int = 12, skip: bool = False, **more: object
) -> PretrainJob:
    """Images: 48, so four steps an epoch and three epochs. Without skips there is no drop path, whose noise is drawn
    for each slice of a batch."""
    job = tiny_job(skip=skip, epochs=3, batch_size=batch, checkpoint_every_steps=2, accumulate=accumulate,
                   parallel=parallel, **more)  # fmt: skip
    return job.model_copy(update={"optimizer": job.optimizer.model_copy(update={"lr": 0.002})})


@pytest.fixture(scope="module")
def one(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One process, never disturbed."""
    run_dir = tmp_path_factory.mktemp("one") / "run"
    assert [code for code, _ in run_ranks(1, job_of(), images, run_dir)] == [0]
    return run_dir


@pytest.fixture(scope="module")
def half(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two processes, both killed in step 7; the newest checkpoint is of step 6, in the middle of an epoch."""
    run_dir = tmp_path_factory.mktemp("half") / "run"
    outcomes = run_ranks(2, job_of(), images, run_dir, failpoint="step.before_update:kill@7")
    assert [code for code, _ in outcomes] == [-signal.SIGKILL] * 2, outcomes
    return run_dir


def assert_near(run_dir: Path, straight: Path, loss: float = LOSS) -> None:
    ours, theirs = rows_of(run_dir), rows_of(straight)
    assert [row["step"] for row in ours] == [row["step"] for row in theirs] == list(range(1, STEPS + 1))
    assert [row["loss"] for row in ours] == pytest.approx([row["loss"] for row in theirs], abs=loss)
    for name in ("student", "teacher"):
        mine, other = (load_tensors(top / "checkpoints" / FINAL / f"{name}.safetensors") for top in (run_dir, straight))
        for key, value in mine.items():
            # AdamW divides by a root: where a gradient is all rounding, so is the update, and it is one rate long.
            assert (value - other[key]).abs().max() < 2e-4, f"{name}.{key}"


def go_on(images: Path, half: Path, run_dir: Path, size: int, job: PretrainJob) -> str:
    shutil.copytree(half, run_dir)
    outcomes = run_ranks(size, job, images, run_dir)
    assert [code for code, _ in outcomes] == [0] * size, outcomes
    assert f"goes on after step 6 of {STEPS}" in outcomes[0][1]
    assert read_json(run_dir / "env.json")["world_size"] == size
    return outcomes[0][1]


@pytest.mark.parametrize("size", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_resume_world_size_from_two_to(size: int, images: Path, one: Path, half: Path, tmp_path: Path) -> None:
    go_on(images, half, tmp_path / "run", size, job_of())
    assert_near(tmp_path / "run", one)


@pytest.mark.slow
def test_resume_world_size_from_one_to_two(images: Path, one: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run_ranks(1, job_of(), images, run_dir, failpoint="step.before_update:kill@7")
    outcomes = run_ranks(2, job_of(), images, run_dir)
    assert [code for code, _ in outcomes] == [0, 0], outcomes
    assert_near(run_dir, one)


def test_resume_world_size_that_does_not_divide_the_batch(images: Path, tmp_path: Path) -> None:
    outcomes = run_ranks(2, tiny_job(batch_size=9), images, tmp_path / "run")
    assert [code for code, _ in outcomes] == [2, 2], outcomes
    assert "batch_size 9 cannot be shared equally by 2 processes (8 or 10 can)" in outcomes[0][1]


@pytest.mark.slow
def test_ranks_times_micro_batches_is_what_counts(images: Path, tmp_path: Path) -> None:
    """Drop path's noise belongs to the slice of the batch, whichever rank computes it."""
    assert run_ranks(2, job_of(skip=True), images, tmp_path / "two")[0][0] == 0
    assert run_ranks(1, job_of(skip=True, accumulate=2), images, tmp_path / "one")[0][0] == 0
    assert_near(tmp_path / "one", tmp_path / "two")


@pytest.mark.slow
def test_sharded_checkpoints_are_those_of_whole_copies(images: Path, one: Path, tmp_path: Path) -> None:
    """FSDP2 all along, FSDP2 to DDP, and DDP to FSDP2: within rounding of one process."""
    outcomes = run_ranks(2, job_of(parallel="fsdp"), images, tmp_path / "fsdp")
    assert [code for code, _ in outcomes] == [0, 0], outcomes
    assert_near(tmp_path / "fsdp", one)
    for first, then in (("fsdp", "ddp"), ("ddp", "fsdp")):
        run_dir = tmp_path / f"{first}-{then}"
        run_ranks(2, job_of(parallel=first), images, run_dir, failpoint="step.before_update:kill@7")
        outcomes = run_ranks(2, job_of(parallel=then), images, run_dir)
        assert [code for code, _ in outcomes] == [0, 0], outcomes
        assert_near(run_dir, one)
        assert (
            f'"key": "pretrain.parallel", "old": "{first}", "new": "{then}"' in (run_dir / "changes.jsonl").read_text()
        )


def test_two_ranks_train_like_one_survive_sigterm_to_one_of_them_and_go_on(
    images: Path, one: Path, tmp_path: Path
) -> None:
    run_dir, job = tmp_path / "run", job_of()
    pair = [Child(job, images, run_dir, env=env) for env in rank_environments(2)]
    with children(*pair):
        pair[0].wait_for(lambda: count_rows(run_dir) >= 3)
        pair[1].signal(signal.SIGTERM)
        for child in pair:
            child.ends(75, "stopped after step")
    stopped = read_json(run_dir / "status.json")
    assert stopped["state"] == "preempted"
    assert 3 <= stopped["step"] < STEPS
    assert [code for code, _ in run_ranks(2, job, images, run_dir)] == [0, 0]
    assert_near(run_dir, one)


def test_listing_order_ranks_that_see_other_images_stop_before_the_first_step(images: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(images, other)
    (other / "image 07.png").write_bytes((other / "image 08.png").read_bytes())
    outcomes = run_ranks(2, tiny_job(), [images, other], tmp_path / "run")
    assert [code for code, _ in outcomes] == [3, 3], outcomes
    for _, log in outcomes:
        assert "the images: rank 1 sees" in log
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
