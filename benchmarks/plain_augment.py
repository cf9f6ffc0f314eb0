"""The augmentation of a CPU as it was until 2026-11-26: the present one has equal bits and is timed against it.

All operations of a round are done to all images, and the identity where another one is due. Nothing of it is shared
with :mod:`dinoskip.data.augment` but the columns of a vector and the weights of the blur.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from dinoskip.data.augment import (
    BRIGHTNESS,
    CONTRAST,
    FLIP,
    GREY,
    HUE,
    JITTER,
    MEAN,
    ORDER,
    ORDERS,
    SATURATION,
    SIGMA,
    SOLARISE,
    STD,
    blur_weights,
)

CHUNK_PIXELS = 1 << 18  # images × height × width at a time


def plain_augment(crops: Tensor, parameters: Tensor) -> Tensor:
    """Augment uint8 crops (N, 3, S, S) by vectors float32 (N, PARAMETERS), both on the CPU, to float32 (N, 3, S, S)."""
    host = parameters.numpy()
    step = max(1, CHUNK_PIXELS // max(1, crops.shape[2] * crops.shape[3]))
    result = torch.empty(crops.shape, dtype=torch.float32)
    for start in range(0, len(crops), step):
        result[start : start + step] = _augment(crops[start : start + step], host[start : start + step])
    return result


def _augment(crops: Tensor, host: np.ndarray) -> Tensor:
    images = crops.to(torch.float32, memory_format=torch.contiguous_format).mul_(1 / 255)
    jittered = host[:, JITTER] > 0
    weights = blur_weights(host[:, SIGMA])
    reach = (weights[:, 1:] > 0).sum(axis=1)
    _change(images, host[:, FLIP] > 0, lambda chosen: chosen.flip(3))
    _change(images, jittered, lambda chosen: _jitter(chosen, host[jittered]))
    _change(images, host[:, GREY] > 0, lambda chosen: _luma(chosen).expand(-1, 3, -1, -1))
    for size in np.unique(reach[reach > 0]):
        kernel = torch.from_numpy(np.ascontiguousarray(weights[reach == size, : size + 1]))
        _change(images, reach == size, partial(_blur, weights=kernel))
    _change(images, host[:, SOLARISE] > 0, lambda chosen: torch.minimum(chosen, 1 - chosen))
    mean, std = torch.tensor([MEAN, STD]).view(2, 1, 3, 1, 1).unbind()
    return images.sub_(mean).div_(std)


def _change(images: Tensor, mask: np.ndarray, operation: Callable[[Tensor], Tensor]) -> None:
    where = np.flatnonzero(mask)
    if len(where):
        changed = operation(images.index_select(0, torch.from_numpy(where)))
        for position, image in zip(where.tolist(), changed, strict=True):
            images[position].copy_(image)


def _jitter(images: Tensor, host: np.ndarray) -> Tensor:
    columns = ORDERS[host[:, ORDER].astype(int)].T + BRIGHTNESS
    factors = np.take_along_axis(host, columns.T, axis=1).T
    for column, factor in zip(columns, factors, strict=True):
        scale = np.where(column == HUE, np.float32(1), factor)
        grey = np.where(column == SATURATION, 1 - factor, np.float32(0))
        mean = np.where(column == CONTRAST, 1 - factor, np.float32(0))
        images = _blend(images, *(torch.from_numpy(part).view(-1, 1, 1, 1) for part in (scale, grey, mean)))
        turn = torch.from_numpy(factor[column == HUE]).view(-1, 1, 1, 1)
        _change(images, column == HUE, partial(_rotate_hue, turn=turn))
    return images


def _luma(images: Tensor) -> Tensor:
    red, green, blue = images[:, 0:1], images[:, 1:2], images[:, 2:3]
    return (red * 0.299).add_(green, alpha=0.587).add_(blue, alpha=0.114)


def _blend(images: Tensor, scale: Tensor, grey: Tensor, mean: Tensor) -> Tensor:
    level = _luma(images)
    average = level.mean(dim=3, keepdim=True).mean(dim=2, keepdim=True).mul_(mean)
    level = level.mul_(grey).add_(average)
    return torch.addcmul(level, images, scale).clamp_(0, 1)


def _positive(values: Tensor) -> Tensor:
    return (values * 1e30).clamp_(0, 1)


def _rotate_hue(images: Tensor, turn: Tensor) -> Tensor:
    red, green, blue = images[:, 0:1], images[:, 1:2], images[:, 2:3]
    offset = _positive(blue - green).mul_(-6)
    larger, smaller = torch.maximum(green, blue), torch.minimum(green, blue)
    exchanged = _positive(larger - red)
    offset = offset.sub_(exchanged.mul_((offset + 1).mul_(2)))
    high, middle = torch.maximum(red, larger), torch.minimum(red, larger)
    low = torch.minimum(middle, smaller)
    chroma = high.sub_(low)
    hue = middle.sub_(smaller).div_(chroma.clamp(min=1e-12)).add_(offset).abs_()
    hue = hue.add_(turn * 6)
    hue = hue.sub_((hue / 6).floor_().mul_(6))
    pure = (
        (hue - 3).abs_().sub_(1),
        (hue - 2).abs_().neg_().add_(2),
        (hue - 4).abs_().neg_().add_(2),
    )
    return torch.cat([torch.addcmul(low, chroma, channel.clamp_(0, 1)) for channel in pure], dim=1)


def _blur(images: Tensor, weights: Tensor) -> Tensor:
    taps = weights.view(*weights.shape, 1, 1, 1).unbind(dim=1)
    for axis in (3, 2):
        length = images.shape[axis]
        for _ in range(3):
            before, images = images, images * taps[0]
            for step, weight in enumerate(taps[1:], start=1):
                inside, border = max(0, length - step), min(step, length)
                images.narrow(axis, step, inside).addcmul_(before.narrow(axis, 0, inside), weight)
                images.narrow(axis, 0, inside).addcmul_(before.narrow(axis, step, inside), weight)
                images.narrow(axis, 0, border).addcmul_(before.narrow(axis, 0, 1), weight)
                images.narrow(axis, length - border, border).addcmul_(before.narrow(axis, length - 1, 1), weight)
    return images
