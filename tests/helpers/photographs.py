"""Crops of photographs that come inside scikit-image and scikit-learn, to calibrate on, and of others, held out."""

from __future__ import annotations

import functools
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

from dinoskip.diagnostics.signal import as_input
from dinoskip.io.images import read_image

CALIBRATED_ON = ("coffee.png", "china.jpg", "rocket.jpg", "chelsea.png", "brick.png", "grass.png")
HELD_OUT = ("astronaut.png", "flower.jpg", "motorcycle_left.png")
_EACH = 6


def _path(name: str) -> Path:
    package, inside = ("sklearn", "datasets/images") if name in {"china.jpg", "flower.jpg"} else ("skimage", "data")
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / inside / name


@functools.cache
def photographs(size: int, *, held_out: bool = False) -> Tensor:
    """Six squares of each, half as wide as its short side, from corner to corner: float64 (B, 3, size, size)."""
    crops = []
    for name in HELD_OUT if held_out else CALIBRATED_ON:
        pixels = read_image(_path(name))
        side = min(pixels.shape[:2]) // 2
        for part in range(_EACH):
            top, left = (part * (length - side) // (_EACH - 1) for length in pixels.shape[:2])
            crops.append(as_input(pixels[top : top + side, left : left + side], size))
    return torch.stack(crops)
