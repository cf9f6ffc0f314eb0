"""Settings of pretraining by iBOT (Zhou et al. 2022)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator

from dinoskip.data.config import CropConfig, Scale
from dinoskip.settings.flops import dino_head_flops, dino_step_flops
from dinoskip.settings.vit_config import SHAPES, VitConfig
from dinoskip.training.pretrain_config import StepCost
from dinoskip.training.teacher_student import TeacherStudentConfig, filled

if TYPE_CHECKING:
    from dinoskip.data.view_targets import ViewTargets


def _are_shares(ratios: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], ...]:
    if not ratios or not all(0 <= low <= high < 1 for low, high in ratios):
        raise ValueError("must be pairs of shares, 0 <= low <= high < 1")
    return ratios


class IbotCropConfig(CropConfig):
    """Crops of the published run: ten local ones, and global ones of a larger range than DINO's."""

    num_local: int = Field(default=10, ge=0, le=64, description="local crops of an image")
    global_scale: Scale = Field((0.25, 1.0), description="least and greatest share of the image's area")
    local_scale: Scale = Field((0.05, 0.25), description="least and greatest share of the image's area")


PRESETS: dict[str, dict[str, Any]] = {
    "dinov2_like": {
        "epochs": 100, "batch_size": 1024, "warmup_epochs": 10, "out_dim": 65536, "momentum_teacher": 0.992,
        "koleo": {"weight": 0.1}, "centering": "sinkhorn",
        "crops": {"num_local": 8, "global_scale": (0.32, 1.0), "local_scale": (0.05, 0.32)},
    },
}  # fmt: skip
"""DINO, iBOT, KoLeo and Sinkhorn centring, with the schedules of facebookresearch/dinov2's default configuration."""


class IbotConfig(TeacherStudentConfig):
    """iBOT's settings; the defaults are those of the published command for ViT-S/16, 800 epochs."""

    place: ClassVar[str] = "dinoskip_objectives.ibot:IBOT"
    order: ClassVar[int] = 20
    extended_by: ClassVar[str] = "ibot"
    masks: ClassVar[bool] = True

    objective: Literal["ibot"] = "ibot"
    preset: Literal["dinov2_like"] | None = Field(
        None, exclude=True, description="a named recipe: the settings that are not given are its own"
    )
    epochs: int = Field(800, ge=1, description="passes over the images")
    out_dim: int = Field(8192, ge=2, description="prototypes")
    norm_last_layer: bool = Field(False, description="last-layer gain fixed at 1; else trained, the teacher's by EMA")
    crops: IbotCropConfig = IbotCropConfig()
    patch_out_dim: int | None = Field(
        None,
        ge=2,
        description="prototypes of patches, in a last layer of their own; null: the CLS token's last layer",
    )
    mask_ratios: Annotated[tuple[tuple[float, float], ...], AfterValidator(_are_shares)] = Field(
        ((0.0, 0.0), (0.1, 0.5)), description="one is drawn for each global view, then a share of its patches within it"
    )
    teacher_patch_temp: float = Field(0.07, gt=0, description="of patches, after its warm-up")
    warmup_teacher_patch_temp: float = Field(0.04, gt=0, description="of patches, at the first epoch")
    cls_weight: float = Field(1.0, ge=0, description="of the CLS token's loss")
    patch_weight: float = Field(1.0, ge=0, description="of the patches' loss")

    @model_validator(mode="before")
    @classmethod
    def _fill_from_preset(cls, settings: Any) -> Any:
        return filled(settings, PRESETS)

    def targets(self, seed: int, patch_size: int) -> ViewTargets | None:
        """Masks of the global views, and where views overlap, if a loss is added that asks for it."""
        from dinoskip_objectives.masks import BlockMasks  # torch

        crops, masks = self.crops, BlockMasks(self.crops.global_size // patch_size, self.mask_ratios, seed)
        return self.with_overlaps(masks, patch_size, crops.global_size, crops.local_size, crops.num_local)

    def cost(self, model: VitConfig) -> StepCost:
        """Count DINO's cost, with the head also on the teacher's patches and on the student's masked ones."""
        (width, patch), crops = SHAPES[model.name], self.crops
        head = (self.out_dim, self.hidden_dim, self.bottleneck_dim)
        patches = 2 * (crops.global_size // patch) ** 2
        masked = patches * sum(low + high for low, high in self.mask_ratios) / (2 * len(self.mask_ratios))
        mlp, last = dino_head_flops(width, 0, *head[1:]), 2 * self.bottleneck_dim * (self.patch_out_dim or self.out_dim)
        step = dino_step_flops(
            model, head=head, global_size=crops.global_size, local_size=crops.local_size, num_local=crops.num_local
        )
        patch_layer = last // 2 if self.patch_out_dim else 0
        step += int(patches * mlp + masked * (3 * mlp + 4 * last))
        return StepCost(step, dino_head_flops(width, *head) // 2 + patch_layer + width, 2)
