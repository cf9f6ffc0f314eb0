"""Settings of published pretraining runs, to which a study refers by name (docs/protocols.md, with sources)."""

from __future__ import annotations

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
