"""DINO's colour augmentation on whole batches of uint8 crops, on the device that trains.

What happens to each crop is drawn on the host into a small vector of numbers; :func:`augment` is then a pure function
of crops and vectors. Masks are taken from the host's copy, so nothing waits for the device.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from dinoskip.data.config import AugmentConfig
from dinoskip.randomness import uniforms

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
LUMA = (0.299, 0.587, 0.114)  # ITU-R 601-2, as Pillow's convert("L")

# Columns of a parameter vector.
FLIP, JITTER, BRIGHTNESS, CONTRAST, SATURATION, HUE, ORDER, GREY, SIGMA, SOLARISE = range(10)
PARAMETERS = 10
ORDERS = np.array(list(itertools.permutations(range(4))))  # the operations 0..3 are the columns BRIGHTNESS..HUE
CPU_CHUNK_PIXELS = 1 << 18  # images × height × width at a time: temporaries stay in the processor's cache


def view_parameters(config: AugmentConfig, views: int, seed: int, epoch: int, indices: np.ndarray) -> np.ndarray:
    """Return the vectors of all views of samples ``indices`` (B,), float32 (B, views, PARAMETERS)."""
    draw = uniforms(seed, "augment", epoch, numbers=indices, count=views * (PARAMETERS + 1))
    draw = draw.reshape(len(indices), views, PARAMETERS + 1)
    kinds = np.minimum(np.arange(views), 2)  # global 1, global 2, local
    low, high = config.blur_sigma
    vectors = np.empty((len(indices), views, PARAMETERS), dtype=np.float32)
    vectors[..., FLIP] = draw[..., 0] < config.flip
    vectors[..., JITTER] = draw[..., 1] < config.jitter
    vectors[..., BRIGHTNESS] = 1 + config.brightness * (2 * draw[..., 2] - 1)
    vectors[..., CONTRAST] = 1 + config.contrast * (2 * draw[..., 3] - 1)
    vectors[..., SATURATION] = 1 + config.saturation * (2 * draw[..., 4] - 1)
    vectors[..., HUE] = config.hue * (2 * draw[..., 5] - 1)
    vectors[..., ORDER] = np.floor(draw[..., 6] * len(ORDERS))
    vectors[..., GREY] = draw[..., 7] < config.grey
    blurred = draw[..., 9] < np.array(config.blur)[kinds]
    vectors[..., SIGMA] = np.where(blurred, low + (high - low) * draw[..., 8], 0)
    vectors[..., SOLARISE] = draw[..., 10] < np.array(config.solarise)[kinds]
    return vectors


def augment(crops: Tensor, parameters: Tensor) -> Tensor:
    """Flip, jitter, grey, blur, solarise and normalise a batch.

    Args:
        crops: uint8 (N, 3, S, S), any memory layout, on any device.
        parameters: float32 (N, PARAMETERS) on the CPU.

    Returns:
        float32 (N, 3, S, S) on the crops' device, after ImageNet normalisation. Each image's result depends on its own
        crop and vector alone.
    """
    host = parameters.numpy()
    if len(crops) != len(host):
        raise ValueError(f"{len(crops)} crops but {len(host)} parameter vectors")
    if crops.device.type != "cpu":
        return _augment(crops, host)
    step = max(1, CPU_CHUNK_PIXELS // max(1, crops.shape[2] * crops.shape[3]))
    result = torch.empty(crops.shape, dtype=torch.float32)
    for start in range(0, len(crops), step):
        result[start : start + step] = _augment(crops[start : start + step], host[start : start + step])
    return result


def _augment(crops: Tensor, host: np.ndarray) -> Tensor:
    device = crops.device
    images = crops.to(torch.float32, memory_format=torch.contiguous_format).mul_(1 / 255)

    jittered = host[:, JITTER] > 0
    weights = blur_weights(host[:, SIGMA])
    reach = (weights[:, 1:] > 0).sum(axis=1)
    _change(images, host[:, FLIP] > 0, lambda chosen: chosen.flip(3))
    _change(images, jittered, lambda chosen: jitter(chosen, host[jittered]))
    _change(images, host[:, GREY] > 0, lambda chosen: luma(chosen).expand(-1, 3, -1, -1))
    for size in np.unique(reach[reach > 0]):
        kernel = _to(np.ascontiguousarray(weights[reach == size, : size + 1]), device)
        _change(images, reach == size, partial(gaussian_blur, weights=kernel))
    _change(images, host[:, SOLARISE] > 0, solarise)
    mean, std = _to(np.array([MEAN, STD], dtype=np.float32), device).view(2, 1, 3, 1, 1).unbind()
    return images.sub_(mean).div_(std)


def _to(values: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(values).to(device, non_blocking=True)


def _change(images: Tensor, mask: np.ndarray, operation: Callable[[Tensor], Tensor]) -> None:
    """Replace the images of the host's ``mask`` by ``operation`` of them, in place; the others are not computed."""
    where = np.flatnonzero(mask)
    if not len(where):
        return
    index = _to(where, images.device)
    changed = operation(images.index_select(0, index))
    if images.device.type != "cpu":
        images.index_copy_(0, index, changed)
        return
    for position, image in zip(where.tolist(), changed, strict=True):  # on CPUs ten times as fast as index_copy_
        images[position].copy_(image)


def jitter_rounds(host: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return what the four rounds of :func:`jitter` do to each of N images.

    Coefficients of :func:`blend` float32 (4, 3, N); whether a round turns the hue instead, bool (4, N); and by how
    much, float32 (4, N), 0 where it does not.
    """
    columns = ORDERS[host[:, ORDER].astype(int)].T + BRIGHTNESS
    factors = np.take_along_axis(host, columns.T, axis=1).T
    hue = columns == HUE
    coefficients = np.zeros((4, 3, len(host)), dtype=np.float32)
    coefficients[:, 0] = np.where(hue, 1, factors)
    coefficients[:, 1] = np.where(columns == SATURATION, 1 - factors, 0)
    coefficients[:, 2] = np.where(columns == CONTRAST, 1 - factors, 0)
    return coefficients, hue, np.where(hue, factors, 0)


def jitter(images: Tensor, host: np.ndarray) -> Tensor:
    """Brightness, contrast, saturation and hue, in each image's own order; ``host`` are its parameter vectors.

    The first three are one blend with different coefficients, so a round is one blend of all images and a hue rotation
    of those whose turn it is; each takes the identity where another operation is due.
    """
    for coefficients, hue, turns in zip(*jitter_rounds(host), strict=True):
        images = blend(images, *_to(coefficients, images.device).unbind())
        _change(images, hue, partial(rotate_hue, turn=_to(turns[hue], images.device)))
    return images


# --- colour operations on float images in [0, 1], (N, 3, H, W), each with its own strength per image ------------
#
# Semantics are torchvision's on float images. Results lie within 2/255 of Pillow's 8-bit ones, blurred ones within
# 3/255. Every image's result depends on that image alone, bit for bit, however the batch is cut.


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


def turned_hue(images: Tensor, turn: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the least channel, the chroma and the hue in sixths (0..6) after turning it, each (N, 1, H, W).

    ``turn`` (N,) is in full turns (-0.5..0.5). The hue (red 0, green 2, blue 4) is found by sorting the channels,
    first green and blue, then red and the larger of them: each exchange reflects the hue, |offset + (middle - low) /
    (high - low)|.
    """
    red, green, blue = images[:, 0:1], images[:, 1:2], images[:, 2:3]
    offset = _positive(blue - green).mul_(-6)
    larger, smaller = torch.maximum(green, blue), torch.minimum(green, blue)
    exchanged = _positive(larger - red)
    offset = offset.sub_(exchanged.mul_((offset + 1).mul_(2)))
    high, middle = torch.maximum(red, larger), torch.minimum(red, larger)
    low = torch.minimum(middle, smaller)
    chroma = high.sub_(low)
    hue = middle.sub_(smaller).div_(chroma.clamp(min=1e-12)).add_(offset).abs_()
    hue = hue.add_(turn.view(-1, 1, 1, 1) * 6)
    return low, chroma, hue.sub_((hue / 6).floor_().mul_(6))


def rotate_hue(images: Tensor, turn: Tensor) -> Tensor:
    """Turn the hue (HSV) of every image by ``turn`` (N,), in full turns (-0.5..0.5)."""
    low, chroma, hue = turned_hue(images, turn)
    pure = (
        (hue - 3).abs_().sub_(1),
        (hue - 2).abs_().neg_().add_(2),
        (hue - 4).abs_().neg_().add_(2),
    )
    return torch.cat([torch.addcmul(low, chroma, channel.clamp_(0, 1)) for channel in pure], dim=1)


def blur_weights(sigma: np.ndarray) -> np.ndarray:
    """Weights of one of the three box filters that Pillow's GaussianBlur is made of, float32 (N, reach + 1).

    Column d is the weight of the pixels d away; ``sigma`` (N,) in pixels, 0 for none. The box's radius is chosen so
    that three passes have the Gaussian's variance (Gwosdek et al. 2011), its outermost pixels count in part.
    """
    variance = sigma.astype(np.float64) ** 2 / 3
    full = np.floor((np.sqrt(12 * variance + 1) - 1) / 2)
    part = (2 * full + 1) * (full * (full + 1) - 3 * variance) / (6 * (variance - (full + 1) ** 2))
    radius = (full + part)[:, None]
    distance = np.arange(int(full.max(initial=0)) + 2)
    weights: np.ndarray = np.clip(radius + 1 - distance, 0, 1) / (2 * radius + 1)
    return weights.astype(np.float32)


def gaussian_blur(images: Tensor, weights: Tensor) -> Tensor:
    """Blur every image as Pillow does, three box filters along each axis; ``weights`` (N, reach + 1) are one filter's.

    Borders repeat the edge pixel before every pass, as Pillow's do; without its rounding between the passes. A filter
    is applied as shifted additions: faster on CPUs than a grouped convolution, and independent of how the batch is cut.
    """
    taps = weights.view(*weights.shape, 1, 1, 1).unbind(dim=1)  # one a step, each (N, 1, 1, 1)
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


def solarise(images: Tensor) -> Tensor:
    """Invert every value from the middle of the range on: Pillow's threshold 128 of 8-bit values 0..255."""
    return torch.minimum(images, 1 - images)
