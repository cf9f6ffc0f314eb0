"""Settings of distillation: what of which teachers is the target, and the losses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from dinoskip.data.config import AugmentConfig, CropConfig, Probability, Scale
from dinoskip.settings.config import Config, implementation
from dinoskip.settings.flops import patch_flops, vit_flops
from dinoskip.settings.vit_config import SHAPES, VitConfig
from dinoskip.training.patch_contrast_config import JitterConfig
from dinoskip.training.pretrain_config import PretrainConfig, StepCost

if TYPE_CHECKING:
    from dinoskip.data.view_targets import ViewTargets


PointLoss = Literal["cosine_smooth_l1", "cosine", "smooth_l1", "mse"]
CosineOver = Literal["token", "image"]
Standardise = Literal["none", "channel", "phi_s"]


class TeacherConfig(Config):
    """A frozen backbone, which of its features are the target, and the losses of patches and of the CLS token."""

    backbone: str = Field("", description="weights:FILE, run:DIR, dino:FILE, timm:NAME, hub:... or hf:NAME")
    store: Path | None = Field(
        None, description="in place of backbone: a feature store of the training images, whole; crops are cut from it"
    )
    weight: float = Field(1.0, gt=0, description="of this teacher's loss")
    blocks: tuple[int, ...] = Field(
        (0,), min_length=1, description="whose features stand side by side; from 1, 0 is the last, -1 the one before it"
    )
    norm: Literal["final", "none", "layer"] = Field("final", description="norm of its features")
    size: int | None = Field(
        None,
        ge=8,
        description="side in pixels at which it sees the crop; null: the crop's, in whole patches of its own",
    )
    standardise: Standardise = Field(
        "channel", description="targets of points: none, each channel's mean 0 and variance 1, or PHI-S (patches)"
    )
    patches: PointLoss | Literal["intra_kl"] | None = Field(
        "cosine_smooth_l1", description="loss of patches; intra_kl compares similarities within an image; null: none"
    )
    cosine_over: CosineOver = Field("token", description="of patches: a cosine each, or one of an image's whole map")
    patches_weight: float = Field(1.0, gt=0, description="of the patches' loss")
    cls: PointLoss | Literal["queue_kl"] | None = Field(
        "cosine", description="loss of the CLS token; queue_kl compares similarities to a queue; null: none"
    )
    cls_weight: float = Field(1.0, gt=0, description="of the CLS token's loss")
    temperature: float = Field(0.07, gt=0, description="by which cosines are divided in intra_kl and queue_kl")
    queue: int = Field(8192, ge=1, description="CLS tokens of recent images that queue_kl compares with")

    @model_validator(mode="after")
    def _something(self) -> TeacherConfig:
        if self.patches is None and self.cls is None:
            raise ValueError("patches, cls: one of the two losses is needed")
        if bool(self.backbone) == (self.store is not None):
            raise ValueError("backbone, store: one of the two is needed")
        if self.store is not None and self.size is not None:
            raise ValueError("size: a store holds what it holds")
        return self

    @property
    def whitened(self) -> tuple[bool, bool]:
        """Whether targets of patches and of the CLS token are standardised: those of points are."""
        if self.standardise == "none":
            return False, False
        return self.patches not in (None, "intra_kl"), self.cls not in (None, "queue_kl")


Teachers = Annotated[tuple[TeacherConfig, ...], Field(min_length=1)]


class LightAugmentConfig(JitterConfig):
    """Flips and colour jitter; of triples the first is the crop's."""

    grey: Probability = Field(0.2, description="probability of a grey image")


class DistillConfig(PretrainConfig):
    """Settings of distillation; student and teachers see the same crop, which a teacher sees once."""

    place: ClassVar[str] = "dinoskip_objectives.distill:Distill"
    order: ClassVar[int] = 50

    objective: Literal["distill"] = "distill"
    teachers: Teachers = Field(description="frozen backbones")
    crop_size: int = Field(224, ge=8, description="side of the crop in pixels")
    crop_scale: Scale = Field((0.25, 1.0), description="least and greatest share of the image's area")
    augment: LightAugmentConfig = LightAugmentConfig()
    head_layers: int = Field(1, ge=1, description="linear layers of a head; between them LayerNorm and GELU")
    hidden_dim: int = Field(2048, ge=1, description="width between the layers of a head")
    sample: int = Field(64, ge=2, description="images on which targets are measured, to standardise them")
    clip_grad: float = Field(3.0, ge=0, description="bound on each parameter's own gradient norm; 0 = none")

    @model_validator(mode="after")
    def _consistent(self) -> DistillConfig:
        if self.accumulate > 1 and any(teacher.cls == "queue_kl" for teacher in self.teachers):
            raise ValueError("accumulate: must be 1 with queue_kl, whose queue takes a whole batch at once")
        return self

    def views(self) -> tuple[CropConfig, AugmentConfig]:
        """One crop an image, with light augmentation."""
        crops = CropConfig(num_global=1, num_local=0, global_size=self.crop_size, global_scale=self.crop_scale)
        return crops, self.augment

    def targets(self, seed: int, patch_size: int) -> ViewTargets | None:
        """Features of the crops, of teachers that are stores."""
        stored = tuple(teacher for teacher in self.teachers if teacher.store is not None)
        make: Callable[..., ViewTargets] = implementation("dinoskip_objectives.stored_teacher:StoredCrops")
        return make(stored, self.crop_size // patch_size) if stored else None

    def sizes(self) -> dict[str, int]:
        """Side of the crop in pixels, by its key."""
        return {"crop_size": self.crop_size}

    def backbones(self) -> tuple[str, ...]:
        """Specs of the frozen teachers that are networks."""
        return tuple(teacher.backbone for teacher in self.teachers if teacher.backbone)

    def stores(self) -> tuple[Path, ...]:
        """Feature stores of the others."""
        return tuple(teacher.store for teacher in self.teachers if teacher.store is not None)

    def cost(self, model: VitConfig) -> StepCost:
        """The student alone, without its heads: what teachers take is known when they are loaded."""
        step = 3 * vit_flops(model, self.crop_size) - patch_flops(model, self.crop_size)
        return StepCost(step, 2 * SHAPES[model.name][0] ** 2 * len(self.teachers), 1)
