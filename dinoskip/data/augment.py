"""DINO's colour augmentation on whole batches of uint8 crops, on the device that trains.

What happens to each crop is drawn on the host into a small vector of numbers; :func:`augment` is then a pure function
of crops and vectors. Masks are taken from the host's copy, so nothing waits for the device. On a CPU each crop has only
the operations that were drawn for it, with the bits that all operations on whole batches give.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
from torch import Tensor

from dinoskip.data.config import AugmentConfig
from dinoskip.runtime.randomness import uniforms

MEAN = (0.485, 0.456, 0.406)  # of ImageNet, as DataAugmentationDINO and torchvision have them
STD = (0.229, 0.224, 0.225)  # of the same
LUMA = (0.299, 0.587, 0.114)  # ITU-R 601-2, as Pillow's convert("L")

# Columns of a parameter vector.
FLIP, JITTER, BRIGHTNESS, CONTRAST, SATURATION, HUE, ORDER, GREY, SIGMA, SOLARISE = range(10)
PARAMETERS = 10  # the columns above
ORDERS = np.array(list(itertools.permutations(range(4))))  # the operations 0..3 are the columns BRIGHTNESS..HUE
CPU_CHUNK_PIXELS = 1 << 16  # images × height × width at a time, for each thread: what is written stays in its cache


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
    return augment_singly(crops, host) if crops.device.type == "cpu" else augment_together(crops, host)


def augment_singly(crops: Tensor, host: np.ndarray) -> Tensor:
    """:func:`augment` on a CPU: each crop has its own operations alone, few crops at a time."""
    result = torch.empty(crops.shape, dtype=torch.float32)
    weights = blur_weights(host[:, SIGMA])
    reach = (weights[:, 1:] > 0).sum(axis=1)
    mean, std = torch.tensor([MEAN, STD]).view(2, 3, 1, 1).unbind()
    for rows in _alike(host[:, JITTER] > 0, reach, crops.shape[2] * crops.shape[3]):
        vectors, chosen = host[rows], rows.tolist()
        images = torch.empty(len(rows), *crops.shape[1:], dtype=torch.float32)
        for image, row in zip(images, chosen, strict=True):  # bytes that lie plane by plane are flipped faster
            image.copy_(crops[row].contiguous().flip(2) if host[row, FLIP] > 0 else crops[row])
        images.mul_(1 / 255)
        if vectors[0, JITTER] > 0:
            jitter_singly(images, vectors)
        for position in np.flatnonzero(vectors[:, GREY] > 0).tolist():
            images[position] = luma(images[position : position + 1])[0]
        if reach[rows[0]]:
            images = gaussian_blur(images, torch.from_numpy(weights[rows, : reach[rows[0]] + 1]))
        for image, row in zip(images, chosen, strict=True):
            finished = solarise(image) if host[row, SOLARISE] > 0 else image
            torch.sub(finished, mean, out=result[row]).div_(std)
    return result


def _alike(jittered: np.ndarray, reach: np.ndarray, pixels: int) -> Iterator[np.ndarray]:
    """Split N images of so many ``pixels`` by jitter (bool) and reach of the blur, into parts of int64 numbers (n,)."""
    step = max(1, CPU_CHUNK_PIXELS * torch.get_num_threads() // max(1, pixels))
    kinds = 2 * reach + jittered
    for kind in np.unique(kinds):
        rows = np.flatnonzero(kinds == kind)
        yield from (rows[start : start + step] for start in range(0, len(rows), step))


def augment_together(crops: Tensor, host: np.ndarray) -> Tensor:
    """:func:`augment` on another device: each operation is done to all crops that have it, in few launches."""
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
    images.index_copy_(0, index, operation(images.index_select(0, index)))


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


def jitter_singly(images: Tensor, host: np.ndarray) -> None:
    """:func:`jitter` in place, on a CPU: each image has what its order asks for, but hues are turned together."""
    factors = torch.from_numpy(host).view(*host.shape, 1, 1, 1)
    orders = [list(order) for order in ORDERS[host[:, ORDER].astype(int)] + BRIGHTNESS]
    for image, order, factor in zip(images[:, None], orders, factors, strict=True):
        for column in order[: order.index(HUE)]:
            _adjust(image, column, factor[column])
    rotate_hue(images, factors[:, HUE])
    for image, order, factor in zip(images[:, None], orders, factors, strict=True):
        for column in order[order.index(HUE) + 1 :]:
            _adjust(image, column, factor[column])


def _adjust(image: Tensor, column: int, factor: Tensor) -> None:
    """Change the brightness, contrast or saturation of (1, 3, H, W) in place, with the bits of :func:`blend`."""
    if column == BRIGHTNESS:
        image.mul_(factor)
        if float(factor) > 1:
            image.clamp_(max=1)
        return
    level = luma(image)
    if column == CONTRAST:
        level.copy_(_mean(level))  # a whole plane: with a single number addcmul takes four times as long on CPUs
    torch.addcmul(level.mul_(1 - factor), image, factor, out=image).clamp_(0, 1)


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


def _above(values: Tensor, others: Tensor) -> Tensor:
    """1 where a value is above the other's, else 0, as float: several times faster on CPUs than by way of bool."""
    return torch.gt(values, others, out=torch.empty_like(values))


def turned_hue(images: Tensor, turn: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the least channel, the chroma and the hue in sixths (0..6) after turning it, each (N, 1, H, W).

    ``turn`` (N,) is in full turns (-0.5..0.5). The hue (red 0, green 2, blue 4) is found by sorting the channels,
    first green and blue, then red and the larger of them: each exchange reflects the hue, |offset + (middle - low) /
    (high - low)|.
    """
    red, green, blue = images[:, 0:1], images[:, 1:2], images[:, 2:3]
    offset = _above(blue, green).mul_(-6)
    larger, smaller = torch.maximum(green, blue), torch.minimum(green, blue)
    exchanged = _above(larger, red)
    offset.addcmul_(exchanged, offset + 1, value=-2)
    middle = torch.minimum(red, larger, out=exchanged)
    high = torch.maximum(red, larger, out=larger)
    low = torch.minimum(middle, smaller)
    chroma = high.sub_(low)
    hue = middle.sub_(smaller).div_(torch.clamp(chroma, min=1e-12, out=smaller)).add_(offset).abs_()
    hue = hue.add_(turn.view(-1, 1, 1, 1) * 6)
    return low, chroma, hue.sub_(torch.div(hue, 6, out=offset).floor_(), alpha=6)


def rotate_hue(images: Tensor, turn: Tensor) -> Tensor:
    """Turn the hue (HSV) of every image by ``turn`` (N,), in full turns (-0.5..0.5), in place; return the images."""
    low, chroma, hue = turned_hue(images, turn)
    pure = torch.empty_like(hue)
    for channel, centre, end, sign in ((0, 3, 1, 1), (1, 2, 2, -1), (2, 4, 2, -1)):
        torch.sub(hue, centre, out=pure).abs_().clamp_(1, 2).sub_(end)
        torch.addcmul(low, chroma, pure, value=sign, out=images[:, channel : channel + 1])
    return images


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

    The images are overwritten. Borders repeat the edge pixel before every pass, as Pillow's do; without its rounding
    between the passes. A filter is applied as shifted additions: faster on CPUs than a grouped convolution, and
    independent of how the batch is cut.
    """
    taps = weights.view(*weights.shape, 1, 1, 1).unbind(dim=1)  # one a step, each (N, 1, 1, 1)
    before = torch.empty_like(images)
    for axis in (3, 2):
        length = images.shape[axis]
        for _ in range(3):
            before, images = images, torch.mul(images, taps[0], out=before)
            for step, weight in enumerate(taps[1:], start=1):
                border = min(step, length)  # of a crop smaller than the filter all pixels are at the border
                inside = length - border
                images.narrow(axis, border, inside).addcmul_(before.narrow(axis, 0, inside), weight)
                images.narrow(axis, 0, inside).addcmul_(before.narrow(axis, border, inside), weight)
                images.narrow(axis, 0, border).addcmul_(before.narrow(axis, 0, 1), weight)
                images.narrow(axis, length - border, border).addcmul_(before.narrow(axis, length - 1, 1), weight)
    return images


def solarise(images: Tensor) -> Tensor:
    """Invert every value from the middle of the range on: Pillow's threshold 128 of 8-bit values 0..255."""
    return torch.minimum(images, 1 - images)
