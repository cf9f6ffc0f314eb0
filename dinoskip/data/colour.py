"""Colour operations on batches of float images in [0, 1], (N, 3, H, W), each with its own strength per image.

Semantics are torchvision's on float images; results lie within 1-2/255 of Pillow's 8-bit ones. Every image's result
depends on that image alone, bit for bit, however the batch is cut.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

LUMA = (0.299, 0.587, 0.114)  # ITU-R 601-2, as Pillow's convert("L")
SOLARISE_FROM = 127.5 / 255  # Pillow inverts 8-bit values of 128 and more


def luma(images: Tensor) -> Tensor:
    """Return the grey version, (N, 1, H, W)."""
    red, green, blue = images[:, 0:1], images[:, 1:2], images[:, 2:3]
    return (red * LUMA[0]).add_(green, alpha=LUMA[1]).add_(blue, alpha=LUMA[2])


def _mean(grey: Tensor) -> Tensor:
    """Mean of every (1, H, W) plane, (N, 1, 1, 1); rows first, so that the order of summing never depends on N."""
    return grey.mean(dim=3, keepdim=True).mean(dim=2, keepdim=True)


def blend(images: Tensor, scale: Tensor, grey: Tensor, mean: Tensor) -> Tensor:
    """Return clamp(scale · x + grey · luma(x) + mean · average of luma(x)); coefficients are (N,), one per image.

    Brightness b is (b, 0, 0), contrast c is (c, 0, 1 - c), saturation s is (s, 1 - s, 0), nothing is (1, 0, 0).
    """
    shape = (-1, 1, 1, 1)
    level = luma(images)
    average = _mean(level).mul_(mean.view(shape))
    level = level.mul_(grey.view(shape)).add_(average)
    return torch.addcmul(level, images, scale.view(shape)).clamp_(0, 1)


def rotate_hue(images: Tensor, turn: Tensor) -> Tensor:
    """Turn the hue (HSV) of every image by ``turn`` (N,), in full turns (-0.5..0.5)."""
    red, green, blue = images.unbind(dim=1)
    high = torch.maximum(torch.maximum(red, green), blue)
    low = torch.minimum(torch.minimum(red, green), blue)
    chroma = high - low
    safe = chroma.clamp(min=1e-12)
    hue = torch.where(high == green, (blue - red).div_(safe).add_(2), (red - green).div_(safe).add_(4))
    hue = torch.where(high == red, (green - blue).div_(safe), hue)
    hue = hue.add_(turn.view(-1, 1, 1) * 6).remainder_(6)  # in sixths of a turn: red 0, green 2, blue 4
    pure = (
        (hue - 3).abs_().sub_(1),
        (hue - 2).abs_().neg_().add_(2),
        (hue - 4).abs_().neg_().add_(2),
    )
    return torch.stack([torch.addcmul(low, chroma, channel.clamp_(0, 1)) for channel in pure], dim=1)


def blur_reach(sigma: np.ndarray) -> np.ndarray:
    """Return how many pixels a kernel reaches: 3 sigma, rounded up to an even number so that few sizes occur."""
    reach: np.ndarray = np.maximum(2, 2 * np.ceil(1.5 * sigma)).astype(int)
    return reach


def gaussian_blur(images: Tensor, sigma: Tensor, reach: int) -> Tensor:
    """Blur every image with a Gaussian of its own ``sigma`` (N,) in pixels, cut off at ``reach`` pixels.

    Borders repeat the edge pixel. The kernel is applied as shifted additions, one axis after the other: faster on CPUs
    than a grouped convolution, and independent of how the batch is cut.
    """
    offset = torch.arange(reach + 1, dtype=torch.float32, device=images.device)
    kernel = torch.exp(-0.5 * (offset / sigma.view(-1, 1)) ** 2)
    kernel = kernel / (2 * kernel.sum(dim=1, keepdim=True) - kernel[:, :1])
    taps = kernel.view(-1, reach + 1, 1, 1, 1).unbind(dim=1)  # one a step, each (N, 1, 1, 1)
    blurred = images
    for axis, border in ((3, (reach, reach, 0, 0)), (2, (0, 0, reach, reach))):
        length = images.shape[axis]
        padded = pad(blurred, border, mode="replicate")
        blurred = padded.narrow(axis, reach, length) * taps[0]
        for step in range(1, reach + 1):
            pair = padded.narrow(axis, reach - step, length) + padded.narrow(axis, reach + step, length)
            blurred.addcmul_(pair, taps[step])
    return blurred


def solarise(images: Tensor) -> Tensor:
    """Invert every value from the middle of the range on (Pillow's threshold 128)."""
    return torch.where(images >= SOLARISE_FROM, 1 - images, images)
