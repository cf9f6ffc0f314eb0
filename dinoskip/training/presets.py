"""Settings of published pretraining runs, to which a study refers by name (docs/protocols.md, with sources)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
"""What the two public commands for ViT-S/16 say where they differ (docs/protocols.md, with sources)."""
IBOT_PRESETS: dict[str, dict[str, Any]] = {
    "dinov2_like": {
        "epochs": 100, "batch_size": 1024, "warmup_epochs": 10, "out_dim": 65536, "momentum_teacher": 0.992,
        "koleo": {"weight": 0.1}, "centering": "sinkhorn",
        "crops": {"num_local": 8, "global_scale": (0.32, 1.0), "local_scale": (0.05, 0.32)},
    },
}  # fmt: skip
"""DINO, iBOT, KoLeo and Sinkhorn centring, with the schedules of facebookresearch/dinov2's default configuration."""


def filled(given: Any, presets: Mapping[str, dict[str, Any]]) -> Any:
    """Settings, with those of the preset that they name where they are not given; without the preset's name."""
    preset = presets.get(str(given.get("preset"))) if isinstance(given, Mapping) else None
    return given if preset is None else preset | {key: value for key, value in given.items() if key != "preset"}
