"""Images brought to size: bicubic with antialiasing, on uint8 (3, H, W)."""

from __future__ import annotations

import torch
from torch import Tensor

CROP_SHARE = 0.875  # of the short side that a centre crop keeps: 224 of 256, in DINO's k-NN and ConvNeXt's validation


def resize(image: Tensor, height: int, width: int) -> Tensor:
    """Resize to (3, height, width); an image of that size is returned as it is."""
    if image.shape[1:] == (height, width):
        return image
    return torch.nn.functional.interpolate(image[None], size=(height, width), mode="bicubic", antialias=True)[0]


def centre_crop(image: Tensor, size: int) -> Tensor:
    """Short side to size / 0.875, then the centre size × size."""
    short = max(size, round(size / CROP_SHARE))
    scale = short / min(image.shape[1:])
    image = resize(image, *(max(short, int(side * scale)) for side in image.shape[1:]))
    top, left = (round((side - size) / 2) for side in image.shape[1:])
    return image[:, top : top + size, left : left + size]
