"""Settings of a student that learns from its own moving average, the teacher: DINO's, and those derived from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from dinoskip.data.config import AugmentConfig, CropConfig
from dinoskip.training.addends_config import AddendsConfig

Centering = Literal["centre", "sinkhorn"]


class TeacherStudentConfig(AddendsConfig):
    """Settings of a student that learns from its moving average, the teacher: DINO's, which iBOT's derive from."""

    out_dim: int = Field(65536, ge=2, description="prototypes")
    hidden_dim: int = Field(2048, ge=1, description="width of the head's MLP")
    bottleneck_dim: int = Field(256, ge=1, description="width before the prototypes")
    norm_last_layer: bool = Field(True, description="last-layer gain fixed at 1; else trained, the teacher's by EMA")
    student_temp: float = Field(0.1, gt=0, description="temperature of the student's softmax")
    teacher_temp: float = Field(0.07, gt=0, description="after its warm-up")
    warmup_teacher_temp: float = Field(0.04, gt=0, description="at the first epoch, linear to teacher_temp")
    warmup_teacher_temp_epochs: int = Field(30, ge=0, description="epochs from warmup_teacher_temp to teacher_temp")
    centering: Centering = Field(
        "centre", description="of the teacher's scores: a moving average is subtracted, or Sinkhorn's three iterations"
    )
    center_momentum: float = Field(0.9, ge=0, le=1, description="average of the centre")
    momentum_teacher: float = Field(0.996, ge=0, le=1, description="at the first step; cosine to 1")
    clip_grad: float = Field(3.0, ge=0, description="bound on each parameter's own gradient norm; 0 = none")
    freeze_last_layer: int = Field(1, ge=0, description="epochs in which the last layer is not updated")
    crops: CropConfig = CropConfig()
    augment: AugmentConfig = AugmentConfig()

    @model_validator(mode="after")
    def _two_global_crops(self) -> TeacherStudentConfig:
        if self.crops.num_global != 2:
            raise ValueError("crops.num_global: must be 2: each is what the other is compared with")
        return self

    def views(self) -> tuple[CropConfig, AugmentConfig]:
        """Two global crops, and local ones."""
        size = self.rendered(self.crops.global_size)
        same = size == self.crops.global_size
        return (self.crops if same else self.crops.model_copy(update={"global_size": size})), self.augment

    @property
    def extended(self) -> bool:
        """Whether the loss is more than the objective's own, or the teacher's scores are centred by Sinkhorn."""
        return super().extended or self.centering == "sinkhorn"

    def sizes(self) -> dict[str, int]:
        """Sides of global and local crops in pixels, by their keys."""
        return {"crops.global_size": self.crops.global_size, "crops.local_size": self.crops.local_size}


_VITS16_100EP = {
    "epochs": 100, "batch_size": 512, "warmup_epochs": 10,
    "norm_last_layer": True, "warmup_teacher_temp": 0.04, "teacher_temp": 0.04, "warmup_teacher_temp_epochs": 0,
}  # fmt: skip
PRESETS: dict[str, dict[str, Any]] = {
    "dino_vits16_100ep": _VITS16_100EP,
    "dino_vits16_300ep": _VITS16_100EP
    | {"epochs": 300, "batch_size": 1024, "norm_last_layer": False, "teacher_temp": 0.07}
    | {"warmup_teacher_temp_epochs": 30},
}
"""Settings of the two public commands for ViT-S/16 where these differ (docs/protocols.md, with sources)."""


def filled(settings: Any, presets: Mapping[str, dict[str, Any]]) -> Any:
    """Settings, with those of the preset that they name where they are not given; without the preset's name."""
    preset = presets.get(str(settings.get("preset"))) if isinstance(settings, Mapping) else None
    return settings if preset is None else preset | {key: value for key, value in settings.items() if key != "preset"}
