"""Settings of pretraining by DINO (Caron et al. 2021)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, model_validator

from dinoskip.settings.flops import dino_head_flops, dino_step_flops
from dinoskip.settings.vit_config import VitConfig
from dinoskip.training.pretrain_config import StepCost
from dinoskip.training.teacher_student import PRESETS, TeacherStudentConfig, filled

if TYPE_CHECKING:
    from dinoskip.data.view_targets import ViewTargets


class DinoConfig(TeacherStudentConfig):
    """DINO's settings. The defaults are a 300-epoch run with the gain fixed; ``preset`` names a published command."""

    place: ClassVar[str] = "dinoskip.training.dino:DINO"
    order: ClassVar[int] = 10
    extended_by: ClassVar[str] = "dino"

    objective: Literal["dino"] = "dino"
    preset: Literal["dino_vits16_100ep", "dino_vits16_300ep"] | None = Field(
        None, exclude=True, description="a published recipe: the settings that are not given are its own"
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_from_preset(cls, settings: Any) -> Any:
        return filled(settings, PRESETS)

    def targets(self, seed: int, patch_size: int) -> ViewTargets | None:
        """Return the overlaps of views if an added loss needs them, else None."""
        crops = self.crops
        return self.with_overlaps(None, patch_size, crops.global_size, crops.local_size, crops.num_local)

    def cost(self, model: VitConfig) -> StepCost:
        """Student and teacher, each with its head."""
        width, crops = model.width, self.crops
        head = (self.out_dim, self.hidden_dim, self.bottleneck_dim)
        step = dino_step_flops(
            model, head=head, global_size=crops.global_size, local_size=crops.local_size, num_local=crops.num_local
        )
        return StepCost(step, dino_head_flops(width, *head) // 2, 2)
