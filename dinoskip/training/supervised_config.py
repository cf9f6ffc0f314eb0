"""Settings of supervised training: ConvNeXt's recipe (:mod:`dinoskip.training.supervised`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from dinoskip.data.config import ClassAugmentConfig
from dinoskip.init.config import ModelConfig
from dinoskip.training.recipe import Job, TrainConfig

Pooling = Literal["token", "avg"]


class SupervisedConfig(TrainConfig):
    """The supervised recipe; the defaults are ConvNeXt's for ImageNet-1k."""

    section: ClassVar[str] = "supervise"
    batch_size: int = Field(4096, ge=1, description="images a step over all ranks and micro-batches")
    warmup_epochs: float = Field(50, ge=0, description="linear warm-up of the learning rate from 0")
    online_every: int = Field(10, ge=0, description="epochs between evaluations; the last is always one; 0 = none")
    clip_grad: float = Field(0.0, ge=0, description="bound on the norm of all gradients together; 0 = none")
    pooling: Pooling = Field("token", description="what the classifier reads: the CLS token, or the mean of patches")
    augment: ClassAugmentConfig = ClassAugmentConfig()

    def problems(self, model: ModelConfig) -> dict[str, str]:
        """Return the settings that do not go together with a model, by name, with the reason."""
        size = model.refused_size(self.augment.size)
        return {} if size is None else {"augment.size": size}


# The recipe of "Cutting the Skip", section 6.1: no drop path; 4e-3 at a batch of 4096, here per 256 images; constant
# decay.
MODEL_DEFAULTS = {"drop_path": 0.0}
OPTIMIZER_DEFAULTS = {"lr": 2.5e-4, "weight_decay": 0.05, "weight_decay_end": 0.05}


def with_defaults(tree: Mapping[str, Any]) -> dict[str, Any]:
    """A job's or study's tree in which ``model`` and ``optimizer`` start from this recipe's defaults, not DINO's."""
    filled = dict(tree)
    for key, defaults in (("model", MODEL_DEFAULTS), ("optimizer", OPTIMIZER_DEFAULTS)):
        section = tree.get(key, {})
        if isinstance(section, Mapping):
            filled[key] = {**defaults, **section}
    return filled


class SupervisedJob(Job):
    """Everything that a supervised run's result depends on, but the images."""

    supervise: SupervisedConfig = SupervisedConfig()

    @model_validator(mode="before")
    @classmethod
    def _recipe_defaults(cls, values: Any) -> Any:
        return with_defaults(values) if isinstance(values, Mapping) else values

    @model_validator(mode="after")
    def _whole_patches(self) -> SupervisedJob:
        for key, text in self.supervise.problems(self.model).items():
            raise ValueError(f"supervise.{key}: {text}")
        return self
