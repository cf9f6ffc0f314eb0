"""Whole images resized without leaving 8 bits, bicubic with antialiasing: what evaluation does before a network."""

from __future__ import annotations

import torch
from torch import Tensor

CROP_SHARE = 0.875  # of the short side that a centre crop keeps: 224 of 256, in DINO's k-NN and ConvNeXt's validation


def resize(image: Tensor, height: int, width: int) -> Tensor:
    """Resize uint8 (3, H, W) to (3, height, width), bicubic with antialiasing; no copy if it has that size."""
    if image.shape[1:] == (height, width):
        return image
    # Published protocols have filters of their own (mmsegmentation: OpenCV's bilinear one, not antialiased). Here all
    # have this one, so that tasks at one size read one export; a task may name another (`resample` of its transform).
    return torch.nn.functional.interpolate(image[None], size=(height, width), mode="bicubic", antialias=True)[0]


def short_side_size(height: int, width: int, short: int) -> tuple[int, int]:
    """Return (height, width) of an image whose short side is brought to ``short``, as torchvision's Resize has it."""
    least = min(height, width)
    return int(short * height / least), int(short * width / least)


def centre_crop(image: Tensor, size: int) -> Tensor:
    """Resize uint8 (3, H, W) to a short side of size / 0.875 and return the centre, (3, size, size)."""
    short = max(size, round(size / CROP_SHARE))
    image = resize(image, *short_side_size(image.shape[1], image.shape[2], short))
    top, left = (round((side - size) / 2) for side in image.shape[1:])
    return image[:, top : top + size, left : left + size]
