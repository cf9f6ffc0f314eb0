"""Objectives: each is chosen by its name, has its own settings, and is a run with all that the loop gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dinoskip.data import ImageFolder
from dinoskip.errors import ConfigError
from dinoskip.models.build import from_config
from dinoskip.settings.config import RawConfig, validate
from dinoskip.settings.keys import settings_for_key
from dinoskip.training import DinoConfig, PretrainJob, pretrain
from dinoskip.training.objective import Objective, Step
from dinoskip.training.objectives import OBJECTIVES
from dinoskip.training.rates import Schedules
from dinoskip.training.recipe import Job
from tests.helpers.tiny import REQUIRED, make_images, rows_of, tensor_hashes, tiny_job


class ColourConfig(DinoConfig):
    """Settings of :class:`Colour`."""

    weight: float = 1.0

    def build(self, job: Job, steps_per_epoch: int, device: torch.device) -> Colour:
        return Colour(job, self, steps_per_epoch, device)


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
        self.networks = {"student": self.build_network("student").train().to(device)}
        self.buffers: dict[str, Tensor] = {}

    def build_network(self, role: str) -> nn.Module:
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


def test_an_objective_of_ones_own_has_all_that_the_loop_gives(tmp_path: Path) -> None:
    images = ImageFolder.open(make_images(tmp_path / "images"))
    tree = tiny_job(epochs=6, accumulate=2).model_dump(mode="json")
    settings = ColourConfig.model_validate(tree.pop("pretrain"))
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


def test_objectives_are_chosen_by_name_and_dino_is_the_default() -> None:
    assert set(OBJECTIVES) >= {"dino", "patch_contrast"}
    for name, kind in OBJECTIVES.items():
        given = {"objective": name, **REQUIRED.get(name, {})}
        assert type(PretrainJob.model_validate({"pretrain": given}).pretrain) is kind
    job = PretrainJob.model_validate({"pretrain": {"epochs": 20}})
    assert isinstance(job.pretrain, DinoConfig)
    assert settings_for_key(job)["pretrain"] == {"objective": "dino", "epochs": 20}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"objective": "simclr"}, r"pretrain: 'simclr' is none of dino, .*patch_contrast"),
        ({"objective": "patch_contrast", "out_dims": 3}, r"pretrain.out_dims: unknown key \(did you mean out_dim\?\)"),
        ({"objective": "patch_contrast", "crop_size": 100}, r"pretrain.crop_size: 100 is not a multiple of the patch"),
        ({"objective": "patch_contrast", "queue": 8}, r"pretrain: queue: what it holds must change slowly"),
        ({"objective": "patch_contrast", "accumulate": 2}, r"pretrain: accumulate: must be 1"),
    ],
)  # fmt: skip
def test_settings_that_an_objective_lacks_are_one_line(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        validate(PretrainJob, RawConfig({"pretrain": settings}))
    assert len(caught.value.problems) == 1
