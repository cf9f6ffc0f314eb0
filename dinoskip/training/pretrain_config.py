"""Settings of every objective of pretraining: a name, views of its images, and the networks that it trains on them."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from pydantic import Field

from dinoskip.data.config import AugmentConfig, CropConfig, DataPath
from dinoskip.init.config import ModelConfig
from dinoskip.plugins import LAST
from dinoskip.settings.config import implementation
from dinoskip.settings.vit_config import VitConfig
from dinoskip.training.recipe import Job, TrainConfig

if TYPE_CHECKING:
    import torch

    from dinoskip.data.view_targets import ViewTargets
    from dinoskip.training.objective import Objective


class StepCost(NamedTuple):
    """``flops`` of a training step for one image with all its views; ``head``: parameters of the head.

    ``networks``: how many networks (backbone and head) a checkpoint holds.
    """

    flops: int
    head: int
    networks: int


class PretrainConfig(TrainConfig):
    """Settings of every objective. A subclass has a field ``objective``, whose only value is its name."""

    place: ClassVar[str]
    """``package.module:class`` of the objective, which is imported when it is built."""
    order: ClassVar[int] = LAST
    """Its place among objectives where these are listed, the smallest first."""

    data_path: DataPath = Field(
        "crops", description="crops: cut by workers; decode: cut on the device; resident: the set in device memory"
    )

    @abstractmethod
    def views(self) -> tuple[CropConfig, AugmentConfig]:
        """Return the settings by which views of an image are cut and augmented."""

    def targets(self, seed: int, patch_size: int) -> ViewTargets | None:
        """Return the targets that a step needs of its views beside their pixels; None if it needs none."""
        return None

    @abstractmethod
    def sizes(self) -> dict[str, int]:
        """Sides of the views in pixels, by their dotted key; each must be whole patches."""

    def incompatibilities(self, model: ModelConfig) -> dict[str, str]:
        """Return the settings that do not go together with a model of ours, by name, with the reason."""
        return {}

    def problems(self, model: ModelConfig) -> dict[str, str]:
        """Return the settings that do not go together with a model, by name, with the reason (sizes, abilities)."""
        sizes = {key: text for key, side in self.sizes().items() if (text := model.refused_size(side)) is not None}
        if model.timm_name is None:
            return sizes | self.incompatibilities(model)
        reads = getattr(self, "objective", "") != "dino" or getattr(self, "extended", False)
        refused = {"objective": f"reads tokens of ViTs of ours: {model.name} is trained by dino alone"} if reads else {}
        return sizes | refused

    def backbones(self) -> tuple[str, ...]:
        """Specs of frozen networks whose weights the result depends on."""
        return ()

    def stores(self) -> tuple[Path, ...]:
        """Feature stores that the result depends on."""
        return ()

    def build(self, job: Job, steps_per_epoch: int, device: torch.device) -> Objective:
        """The objective with its networks at their start, which depend on ``job`` alone."""
        objective: Objective = implementation(self.place)(job, self, steps_per_epoch, device)
        return objective

    @abstractmethod
    def cost(self, model: VitConfig) -> StepCost:
        """Return the cost of a training step on this model, in closed form (:mod:`dinoskip.settings.flops`)."""
