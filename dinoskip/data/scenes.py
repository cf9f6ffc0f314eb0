"""The embedded data set ``scenes``: labelled scenes composed from photographs that come with installed packages."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from dinoskip.config import Config


class ScenesConfig(Config):
    """How many scenes, how large, of how many classes. ``val_fraction`` of them form the validation split."""

    kind: Literal["scenes"] = "scenes"
    images: int = Field(default=240, ge=4, le=100_000)
    val_fraction: float = Field(default=0.25, gt=0, lt=1)
    size: int = Field(default=224, ge=64, le=1024)
    classes: int = Field(default=6, ge=2, le=6)
    max_objects: int = Field(default=3, ge=1, le=5)
    seed: int = Field(default=0, ge=0)


def compose(config: ScenesConfig, out: str | Path) -> Path:
    """Compose the scenes below ``out``; return the VOC folder ``out/VOC2012``. Same configuration, same bytes."""
    raise NotImplementedError
