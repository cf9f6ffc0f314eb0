"""The job of a pretraining run, and the table of its objectives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, get_args

from pydantic import BeforeValidator, Field, SerializeAsAny, model_validator

from dinoskip.plugins import ByName, Table
from dinoskip.training.dino_config import DinoConfig
from dinoskip.training.patch_contrast_config import PatchContrastConfig
from dinoskip.training.pretrain_config import PretrainConfig
from dinoskip.training.recipe import Job

OwnObjective = DinoConfig | PatchContrastConfig
"""The core's objectives; the others are parts of ``dinoskip.objectives``."""
OBJECTIVES: Mapping[str, type[PretrainConfig]] = Table(
    "objectives", {kind.model_fields["objective"].default: kind for kind in get_args(OwnObjective)}, PretrainConfig
)
"""The settings of every objective, by its name."""


def dino_by_default(settings: Any) -> Any:
    """Settings that name no objective are DINO's."""
    return {"objective": "dino", **settings} if isinstance(settings, Mapping) else settings


ObjectiveConfig = Annotated[
    OwnObjective,
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
