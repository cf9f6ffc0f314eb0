"""Settings of the contrast of patches."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, model_validator

from dinoskip.data.config import AugmentConfig, CropConfig, Probability, Scale
from dinoskip.settings.flops import patch_flops, vit_flops
from dinoskip.settings.vit_config import SHAPES, VitConfig
from dinoskip.training.addends_config import AddendsConfig
from dinoskip.training.pretrain_config import StepCost

if TYPE_CHECKING:
    from dinoskip.data.view_targets import ViewTargets


class JitterConfig(AugmentConfig):
    """Flips and colour jitter, as strong as DINO's, and nothing else; of triples the first two are the two crops'."""

    grey: Probability = Field(0.0, description="probability of a grey image")
    blur: tuple[Probability, Probability, Probability] = Field(
        (0.0, 0.0, 0.0), description="probability of Gaussian blur"
    )
    solarise: tuple[Probability, Probability, Probability] = Field(
        (0.0, 0.0, 0.0), description="probability of solarisation"
    )


class PatchContrastConfig(AddendsConfig):
    """Settings of patch contrast; every patch that lies in both crops carries the loss."""

    place: ClassVar[str] = "dinoskip.training.patch_contrast:PatchContrast"
    order: ClassVar[int] = 40
    extended_by: ClassVar[str] = "patch_contrast"

    objective: Literal["patch_contrast"] = "patch_contrast"
    crop_size: int = Field(224, ge=8, description="side of both crops in pixels")
    crop_scale: Scale = Field((0.35, 1.0), description="share of the image area of both crops")
    augment: JitterConfig = JitterConfig()
    temperature: float = Field(0.1, gt=0, description="by which cosines are divided")
    hidden_dim: int | None = Field(None, ge=1, description="width of the head's MLP; default: twice the backbone's")
    out_dim: int = Field(64, ge=1, description="dimensions in which patches are compared")
    momentum_teacher: float | None = Field(
        None, ge=0, le=1, description="positives and negatives come from a moving average of the student, of this "
        "momentum at the first step and cosine to 1; null: from the student itself",
    )  # fmt: skip
    queue: int = Field(
        0, ge=0, description="more negatives: the mean patches of the last this many views, of the teacher; 0 = none"
    )
    clip_grad: float = Field(3.0, ge=0, description="bound on each parameter's own gradient norm; 0 = none")

    @model_validator(mode="after")
    def _consistent(self) -> PatchContrastConfig:
        if self.queue and self.momentum_teacher is None:
            raise ValueError("queue: what it holds must change slowly: give momentum_teacher, or queue 0")
        needs = [name for name in ("gram", "paka") if getattr(self, name) is not None and not self.backbones()]
        if needs and self.momentum_teacher is None:
            raise ValueError(f"{needs[0]}: it compares with the teacher: give momentum_teacher")
        if self.accumulate > 1:
            raise ValueError(
                "accumulate: must be 1: all patches of a step are one another's negatives and cannot be cut into "
                "micro-batches; a smaller batch_size with a queue can take its place"
            )
        return self

    def views(self) -> tuple[CropConfig, AugmentConfig]:
        """Two crops of one size."""
        size = self.rendered(self.crop_size)
        return CropConfig(global_size=size, num_local=0, global_scale=self.crop_scale), self.augment

    def targets(self, seed: int, patch_size: int) -> ViewTargets | None:
        """Return the matching patches of the two crops, and the rectangle that both show if an added loss needs it."""
        from dinoskip.data.correspondence import Correspondence  # torch

        matches = Correspondence(self.crop_size // patch_size)
        return self.with_overlaps(matches, patch_size, self.crop_size, self.crop_size, 0)

    def sizes(self) -> dict[str, int]:
        """Side of both crops in pixels, by its key."""
        return {"crop_size": self.crop_size}

    def cost(self, model: VitConfig) -> StepCost:
        """Count a step's cost, without the scores between patches."""
        width, patch = SHAPES[model.name]
        hidden = self.hidden_dim or 2 * width
        head = hidden * (width + self.out_dim)
        forward = 2 * (vit_flops(model, self.crop_size) + 2 * head * (self.crop_size // patch) ** 2)
        teacher = self.momentum_teacher is not None
        step = (4 if teacher else 3) * forward - 2 * patch_flops(model, self.crop_size)
        return StepCost(step, head, 2 if teacher else 1)
