"""The job of a pretraining run, and the table of its objectives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, SerializeAsAny, model_validator

from dinoskip.plugins import ByName
from dinoskip.training.dino_config import DinoConfig
from dinoskip.training.distill_config import DistillConfig
from dinoskip.training.ibot_config import IbotConfig
from dinoskip.training.mae_config import MaeConfig
from dinoskip.training.patch_contrast_config import PatchContrastConfig
from dinoskip.training.pretrain_config import PretrainConfig
from dinoskip.training.recipe import Job

AnyObjective = (
    DinoConfig
    | IbotConfig
    | MaeConfig
    | PatchContrastConfig
    | DistillConfig
)  # fmt: skip
"""The table of objectives."""


def dino_by_default(settings: Any) -> Any:
    """Settings that name no objective are DINO's."""
    return {"objective": "dino", **settings} if isinstance(settings, Mapping) else settings


ObjectiveConfig = Annotated[
    AnyObjective,
    Field(discriminator="objective"),
    ByName("objectives", PretrainConfig, "objective"),
    BeforeValidator(dino_by_default),
]


class PretrainJob(Job):
    """Everything that a pretraining run's result depends on, but the images."""

    pretrain: SerializeAsAny[ObjectiveConfig] = DinoConfig()

    @model_validator(mode="after")
    def _whole_patches(self) -> PretrainJob:
        for key, text in self.pretrain.problems(self.model).items():
            raise ValueError(f"pretrain.{key}: {text}")
        return self
