"""The seam of objectives: one class and one line in the table is a run with all that the loop gives."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from dinoskip.data import ImageFolder
from dinoskip.errors import ConfigError
from dinoskip.models.build import from_config
from dinoskip.training import PretrainConfig, PretrainJob, pretrain, pretraining
from dinoskip.training.objective import Objective, Step
from dinoskip.training.rates import Schedules
from dinoskip.training.recipe import Job
from tests.helpers.tiny import make_images, rows_of, tensor_hashes, tiny_job


class ColourConfig(PretrainConfig):
    """Settings of :class:`Colour`."""

    weight: float = 1.0


class _Network(nn.Module):
    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone, self.head = backbone, nn.Linear(192, 3)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.backbone(images))


class Colour(Objective):
    """A network that says the mean colour of a view."""

    observed = "student"

    def __init__(self, job: Job, config: ColourConfig, steps_per_epoch: int, device: torch.device) -> None:
        self.job, self.config = job, config
        self.schedules = Schedules(config, job.optimizer, steps_per_epoch)
        self.networks = {"student": self.fresh("student").train().to(device)}
        self.buffers: dict[str, Tensor] = {}

    def fresh(self, role: str) -> nn.Module:
        with torch.random.fork_rng([]):
            torch.manual_seed(0)
            return _Network(from_config(self.job.model))

    def step(self, step: Step) -> None:
        step.begin(self.schedules.at(step.number))
        for views in step.micro_batches():
            step.backward((step.forward(views[0]) - views[0].mean((2, 3))).square().mean() * self.config.weight)
        step.gradients()
        if step.finite:
            step.optimizer.step()


def test_a_second_objective_is_one_class_and_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(pretraining.OBJECTIVES, ColourConfig, Colour)
    images = ImageFolder.open(make_images(tmp_path / "images"))
    tree = tiny_job(epochs=6, accumulate=2).model_dump(mode="json")
    settings = ColourConfig(**tree.pop("pretrain"))
    job = PretrainJob.model_validate(tree | {"pretrain": settings, "optimizer": {"lr": 0.05, "weight_decay_end": 0.04}})
    final = pretrain(job, images, tmp_path / "run", device="cpu")
    losses = [row["loss"] for row in rows_of(tmp_path / "run")]
    assert sum(losses[-6:]) < 0.5 * sum(losses[:6])
    assert not (final / "teacher.safetensors").exists()
    before = tensor_hashes(final)
    assert pretrain(job, images, tmp_path / "run", device="cpu") == final
    assert tensor_hashes(final) == before
    other = job.model_copy(update={"pretrain": settings.model_copy(update={"weight": 2.0})})
    with pytest.raises(ConfigError, match=r"pretrain.weight: 1.0 → 2.0"):  # its own settings are the run's, too
        pretrain(other, images, tmp_path / "run", device="cpu")
