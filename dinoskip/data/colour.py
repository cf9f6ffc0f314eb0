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


def _positive(values: Tensor) -> Tensor:
    """1 where a value is above 0, else 0, as float: several times faster on CPUs than comparing and selecting."""
    return (values * 1e30).clamp_(0, 1)


def rotate_hue(images: Tensor, turn: Tensor) -> Tensor:
    """Turn the hue (HSV) of every image by ``turn`` (N,), in full turns (-0.5..0.5).

    The hue in sixths of a turn (red 0, green 2, blue 4) is found by sorting the channels, first green and blue, then
    red and the larger of them: each exchange reflects the hue, |offset + (middle - low) / (high - low)|.
    """
    red, green, blue = images.unbind(dim=1)
    offset = _positive(blue - green).mul_(-6)
    larger, smaller = torch.maximum(green, blue), torch.minimum(green, blue)
    exchanged = _positive(larger - red)
    offset = offset.sub_(exchanged.mul_((offset + 1).mul_(2)))
    high, middle = torch.maximum(red, larger), torch.minimum(red, larger)
    low = torch.minimum(middle, smaller)
    chroma = high.sub_(low)
    hue = middle.sub_(smaller).div_(chroma.clamp(min=1e-12)).add_(offset).abs_()
    hue = hue.add_(turn.view(-1, 1, 1) * 6)
    hue = hue.sub_((hue / 6).floor_().mul_(6))
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
    """Invert every value from the middle of the range on: Pillow's threshold 128 of 8-bit values 0..255."""
    return torch.minimum(images, 1 - images)
