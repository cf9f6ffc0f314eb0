"""Exact resume in this process: interrupted anywhere, with any optimizer, a run ends with a straight one's bits."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest

from dinoskip.data import ImageFolder
from dinoskip.optim.config import OptimizerConfig
from dinoskip.settings.specs import list_checkpoints
from dinoskip.training import PretrainJob, compilation, objective, pretrain
from tests.helpers.devices import deterministic
from tests.helpers.tiny import make_images, rows_of, tensor_hashes, tiny_job

OPTIMIZERS = [kind.model_fields["name"].default for kind in get_args(get_args(OptimizerConfig)[0])]
EPOCH = 4  # steps
# Ends of: the warm-up of the rate (1 epoch), of the teacher's temperature (2), of the frozen last layer (3); every
# one is the end of an epoch.
BOUNDARIES = {"warm-up": 1 * EPOCH, "temperature": 2 * EPOCH, "freeze": 3 * EPOCH}


class Killed(BaseException):
    """Stands for SIGKILL: nothing on the way handles it."""


@cache
def folder() -> ImageFolder:
    return ImageFolder.open(make_images(Path(tempfile.mkdtemp()) / "images", 16))


def job_of(**more: Any) -> PretrainJob:
    """Four epochs of four steps of four images, with drop path, a checkpoint after every step."""
    optimizer = more.pop("optimizer", {})
    settings = {
        "epochs": 4, "batch_size": 4, "warmup_epochs": 1, "warmup_teacher_temp_epochs": 2, "freeze_last_layer": 3,
        "checkpoint_every_steps": 1, **more,
    }  # fmt: skip
    tree = tiny_job(**settings).model_dump(mode="json")
    return PretrainJob.model_validate({**tree, "optimizer": {"lr": 0.02, **optimizer}})


def killed_before(
    step: int, job: PretrainJob, run_dir: Path, monkeypatch: pytest.MonkeyPatch, device: str = "cpu"
) -> None:
    """Train until ``step`` (1, 2, ...) is about to change the weights."""
    original, steps = objective.gradients_of, []

    def gradients(*args: Any) -> Any:
        steps.append(1)
        if len(steps) + start == step:
            raise Killed
        return original(*args)

    start = max(list_checkpoints(run_dir), default=0)
    with monkeypatch.context() as patch:
        patch.setattr(objective, "gradients_of", gradients)
        with pytest.raises(Killed):
            pretrain(job, folder(), run_dir, device=device)


def assert_goes_on_to_the_same(
    job: PretrainJob, steps: list[int], tmp_path: Path, patch: pytest.MonkeyPatch, device: str = "cpu"
) -> None:
    """Kill one run before each of ``steps`` in turn; all it leaves then and at the end is that of a straight run."""
    kept = {"keep_epochs": (1, 2, 3), "checkpoint_every_steps": None}
    straight = pretrain(job.model_copy(update={"pretrain": job.pretrain.model_copy(update=kept)}),
                        folder(), tmp_path / "straight", device=device)  # fmt: skip
    run_dir = tmp_path / "run"
    for step in steps:
        killed_before(step, job, run_dir, patch, device)
        assert max(list_checkpoints(run_dir)) == step - 1
        if (step - 1) % EPOCH == 0:
            name = f"checkpoints/step-{step - 1:08d}"
            assert tensor_hashes(run_dir / name) == tensor_hashes(tmp_path / "straight" / name)
    assert tensor_hashes(pretrain(job, folder(), run_dir, device=device)) == tensor_hashes(straight)
    assert rows_of(run_dir) == rows_of(tmp_path / "straight")


@pytest.mark.parametrize(
    "boundary", [pytest.param(b, marks=pytest.mark.slow if b != "freeze" else ()) for b in BOUNDARIES]
)
def test_bits_at_every_schedule_boundary(boundary: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Resumed one step before the boundary, at it, and one step after it."""
    end = BOUNDARIES[boundary]
    assert_goes_on_to_the_same(job_of(), [end, end + 1, end + 2], tmp_path, monkeypatch)


@pytest.mark.parametrize(
    "optimizer", [pytest.param(o, marks=pytest.mark.slow if o != "soap" else ()) for o in OPTIMIZERS]
)
def test_bits_with_every_optimizer(optimizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed before, at and after a refresh of the bases of those that have some."""
    frequency = {"precondition_frequency": 3} if optimizer not in {"adamw", "muon"} else {}
    tree = job_of(optimizer={"name": optimizer, "lr": 0.01, **frequency}).model_dump(mode="json")
    tree["model"] |= {"name": "vit_mini_patch8", "depth": 1}  # bases of few dimensions
    job = PretrainJob.model_validate(tree)
    assert_goes_on_to_the_same(job, [4, 5, 13], tmp_path, monkeypatch)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("optimizer", ["adamw", "soap"])
@pytest.mark.parametrize(
    "device", [pytest.param("cpu", marks=pytest.mark.slow), pytest.param("cuda", marks=pytest.mark.gpu)]
)
def test_bits_on_each_device(
    device: str, optimizer: str, compiled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Algorithms are deterministic; torch has none for resizing positions, so all crops have one size.

    On a CPU torch traces and partitions as ever, but compiles no C++, which takes minutes.
    """
    if device == "cpu":
        monkeypatch.setattr(compilation, "BACKEND", "aot_eager")
    frequency = {"precondition_frequency": 3} if optimizer == "soap" else {}
    crops = {"global_size": 32, "local_size": 32, "num_local": 1}
    job = job_of(optimizer={"name": optimizer, "lr": 0.01, **frequency}, crops=crops, compile=compiled)
    with deterministic():
        assert_goes_on_to_the_same(job, [4, 5], tmp_path, monkeypatch, device)


@pytest.mark.slow
def test_bits_with_accumulated_gradients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_goes_on_to_the_same(job_of(accumulate=2), [3, 5, 14], tmp_path, monkeypatch)
