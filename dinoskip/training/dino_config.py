"""Settings of pretraining by DINO (Caron et al. 2021)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator

from dinoskip.config import OmitDefaultFromKey, implementation
from dinoskip.flops import dino_head_flops, dino_step_flops
from dinoskip.training.pretrain_config import StepCost
from dinoskip.training.recipe import Job
from dinoskip.training.teacher_student import PRESETS, TeacherStudentConfig, filled
from dinoskip.vit_config import VitConfig

if TYPE_CHECKING:
    import torch

    from dinoskip.data.view_targets import ViewTargets
    from dinoskip.training.objective import Objective


class DinoConfig(TeacherStudentConfig):
    """DINO's settings. The defaults are a 300-epoch run with the gain fixed; ``preset`` names a published command."""

    objective: Annotated[Literal["dino"], OmitDefaultFromKey()] = "dino"
    preset: Literal["dino_vits16_100ep", "dino_vits16_300ep"] | None = Field(
        None, exclude=True, description="a published recipe: the settings that are not given are its own"
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_from_preset(cls, given: Any) -> Any:
        return filled(given, PRESETS)

    def targets(self, seed: int, patch_size: int) -> ViewTargets | None:
        """Where views overlap, if a loss is added that asks for it."""
        crops = self.crops
        return self.with_overlaps(None, patch_size, crops.global_size, crops.local_size, crops.num_local)

    def build(self, job: Job, steps_per_epoch: int, device: torch.device) -> Objective:
        """DINO with student, teacher and centre at their start."""
        make: Callable[..., Objective] = implementation(
            "dinoskip.training.extended:ExtendedDINO" if self.extended else "dinoskip.training.dino:DINO"
        )
        return make(job, self, steps_per_epoch, device)

    def cost(self, model: VitConfig) -> StepCost:
        """Student and teacher, each with its head."""
        width, crops = model.width, self.crops
        head = (self.out_dim, self.hidden_dim, self.bottleneck_dim)
        step = dino_step_flops(
            model, head=head, global_size=crops.global_size, local_size=crops.local_size, num_local=crops.num_local
        )
        return StepCost(step, dino_head_flops(width, *head) // 2, 2)
