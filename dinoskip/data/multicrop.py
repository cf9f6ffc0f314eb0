"""Multi-crop from one decoded image: ten uint8 crops cut and resized without leaving 8 bits.

The crop is ``torchvision.transforms.RandomResizedCrop``'s (area and log aspect ratio drawn up to ten times, then the
central fallback); the resize is bicubic with antialiasing, on the interleaved bytes of the decoder.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import AfterValidator, Field

from dinoskip.config import Config
from dinoskip.randomness import numpy_rng

RATIO = (3 / 4, 4 / 3)
TRIES = 10


def _is_scale(scale: tuple[float, float]) -> tuple[float, float]:
    if not 0 < scale[0] <= scale[1] <= 1:
        raise ValueError("must be two fractions of the image area, 0 < low <= high <= 1")
    return scale


Scale = Annotated[tuple[float, float], AfterValidator(_is_scale)]


class CropConfig(Config):
    """Sizes in pixels, numbers of crops, and the fractions of the image area they cover (docs/protocols.md)."""

    global_size: int = Field(default=224, ge=8)
    local_size: int = Field(default=96, ge=8)
    num_global: Literal[2] = 2
    num_local: int = Field(default=8, ge=0, le=64)
    global_scale: Scale = (0.4, 1.0)
    local_scale: Scale = (0.05, 0.4)

    @property
    def num_views(self) -> int:
        """Global and local crops together."""
        return self.num_global + self.num_local


def draw_boxes(draws: np.ndarray, height: int, width: int, scales: np.ndarray) -> np.ndarray:
    """Return crop boxes, int64 (V, 4) as top, left, height, width, for an image of ``height`` × ``width`` pixels.

    Args:
        draws: uniform numbers in [0, 1), (V, TRIES, 4): area, aspect, top, left of every try of every view.
        height: image height in pixels.
        width: image width in pixels.
        scales: (V, 2), the range of the crop's share of the image area.
    """
    low, high = scales[:, None, 0], scales[:, None, 1]
    area = height * width * (low + draws[..., 0] * (high - low))
    aspect = np.exp(math.log(RATIO[0]) + draws[..., 1] * (math.log(RATIO[1]) - math.log(RATIO[0])))
    w = np.rint(np.sqrt(area * aspect)).astype(np.int64)
    h = np.rint(np.sqrt(area / aspect)).astype(np.int64)
    fits = (w > 0) & (h > 0) & (w <= width) & (h <= height)
    first = fits.argmax(axis=1)
    views = np.arange(len(draws))
    w, h, u = w[views, first], h[views, first], draws[views, first]
    top = (u[:, 2] * (height - h + 1)).astype(np.int64)
    left = (u[:, 3] * (width - w + 1)).astype(np.int64)
    boxes = np.stack([top, left, h, w], axis=1)
    boxes[~fits[views, first]] = central_box(height, width)
    return boxes


def central_box(height: int, width: int) -> tuple[int, int, int, int]:
    """Return the fallback crop: the largest central one whose aspect ratio lies within 3/4 to 4/3."""
    w, h = width, height
    if width / height < RATIO[0]:
        h = round(width / RATIO[0])
    elif width / height > RATIO[1]:
        w = round(height * RATIO[1])
    return (height - h) // 2, (width - w) // 2, h, w


def crop_boxes(config: CropConfig, height: int, width: int, seed: int, epoch: int, index: int) -> np.ndarray:
    """Return the boxes of all views of sample ``index`` in ``epoch``, int64 (V, 4), global ones first."""
    rng = numpy_rng(seed, "crop", epoch, index)
    scales = np.array([config.global_scale] * config.num_global + [config.local_scale] * config.num_local)
    return draw_boxes(rng.random((config.num_views, TRIES, 4)), height, width, scales)


def resize_crop(image: torch.Tensor, box: Sequence[int], size: int) -> torch.Tensor:
    """Cut ``box`` (top, left, height, width) from uint8 (H, W, 3) and resize it to uint8 (3, size, size)."""
    top, left, height, width = (int(value) for value in box)
    crop = image[top : top + height, left : left + width].permute(2, 0, 1)
    if (height, width) == (size, size):
        return crop
    # Given interleaved bytes, torch resizes all channels at once and returns planes: thrice as fast as from planes.
    return torch.nn.functional.interpolate(crop[None], (size, size), mode="bicubic", antialias=True)[0]


def write_crops(image: np.ndarray, boxes: np.ndarray, globals_: torch.Tensor, locals_: torch.Tensor) -> None:
    """Write the crops of one image (uint8 (H, W, 3)) into ``globals_`` (2, 3, S, S) and ``locals_`` (L, 3, s, s)."""
    source = torch.from_numpy(image)
    for view, box in enumerate(boxes):
        target = globals_[view] if view < len(globals_) else locals_[view - len(globals_)]
        target.copy_(resize_crop(source, box, target.shape[-1]))
