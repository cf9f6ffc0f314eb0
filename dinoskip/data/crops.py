"""Crops of one decoded image, cut and resized without leaving 8 bits: in a worker, on the device, or for evaluation.

A training crop is ``torchvision.transforms.RandomResizedCrop``'s (area and log aspect ratio drawn up to ten times, then
the central fallback); the resize is bicubic with antialiasing, on the interleaved bytes of the decoder. On a device it
is two batched matrix products: resizing is separable and linear, so a crop is ``A_h · window · A_wᵀ`` with one small
weight matrix per side, built from the box. Between and after the products values are rounded and clamped to 8 bits, as
the workers' resize does; the two differ by 1 grey level where rounding fell otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import AfterValidator, Field
from torch import Tensor

from dinoskip.config import Config
from dinoskip.precision import exact_products
from dinoskip.randomness import uniforms

RATIO = (3 / 4, 4 / 3)
TRIES = 10
PEAK = 2.0**15 - 0.5  # the largest weight of a signal, in torch's fractions
CHUNK_PIXELS = 1 << 24  # of the windows that are on the device at a time; about 30 bytes each
CROP_SHARE = 0.875  # of the short side that a centre crop keeps: 224 of 256, in DINO's k-NN and ConvNeXt's validation


def _is_scale(scale: tuple[float, float]) -> tuple[float, float]:
    if not 0 < scale[0] <= scale[1] <= 1:
        raise ValueError("must be two fractions of the image area, 0 < low <= high <= 1")
    return scale


Scale = Annotated[tuple[float, float], AfterValidator(_is_scale)]


class CropConfig(Config):
    """Sizes in pixels, numbers of crops, and the fractions of the image area they cover (docs/protocols.md)."""

    global_size: int = Field(default=224, ge=8, description="side of global crops, pixels")
    local_size: int = Field(default=96, ge=8, description="side of local crops, pixels")
    num_global: Literal[2] = Field(2, description="global crops an image; DINO's loss is made for two")
    num_local: int = Field(default=8, ge=0, le=64, description="local crops an image")
    global_scale: Scale = Field(
        (0.4, 1.0), description="least and greatest area of a global crop, as shares of the image's"
    )
    local_scale: Scale = Field(
        (0.05, 0.4), description="least and greatest area of a local crop, as shares of the image's"
    )

    @property
    def num_views(self) -> int:
        """Global and local crops together."""
        return self.num_global + self.num_local


def draw_boxes(draws: np.ndarray, heights: np.ndarray, widths: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Return crop boxes, int64 (N, 4) as top, left, height, width.

    Args:
        draws: uniform numbers in [0, 1), (N, TRIES, 4): area, aspect, top, left of every try of every box.
        heights: of the images that the boxes are for, in pixels, int64 (N,).
        widths: of the images, int64 (N,).
        scales: (N, 2), the range of the box's share of the image area.
    """
    height, width = heights[:, None], widths[:, None]
    low, high = scales[:, None, 0], scales[:, None, 1]
    area = height * width * (low + draws[..., 0] * (high - low))
    aspect = np.exp(math.log(RATIO[0]) + draws[..., 1] * (math.log(RATIO[1]) - math.log(RATIO[0])))
    w = np.rint(np.sqrt(area * aspect)).astype(np.int64)
    h = np.rint(np.sqrt(area / aspect)).astype(np.int64)
    fits = (w > 0) & (h > 0) & (w <= width) & (h <= height)
    first = fits.argmax(axis=1)
    rows = np.arange(len(draws))
    w, h, u = w[rows, first], h[rows, first], draws[rows, first]
    top = (u[:, 2] * (heights - h + 1)).astype(np.int64)
    left = (u[:, 3] * (widths - w + 1)).astype(np.int64)
    boxes = np.stack([top, left, h, w], axis=1)
    for row in np.flatnonzero(~fits[rows, first]):
        boxes[row] = central_box(int(heights[row]), int(widths[row]))
    return boxes


def central_box(height: int, width: int) -> tuple[int, int, int, int]:
    """Return the fallback crop: the largest central one whose aspect ratio lies within 3/4 to 4/3."""
    w, h = width, height
    if width / height < RATIO[0]:
        h = round(width / RATIO[0])
    elif width / height > RATIO[1]:
        w = round(height * RATIO[1])
    return (height - h) // 2, (width - w) // 2, h, w


def crop_draws(config: CropConfig, seed: int, epoch: int, indices: np.ndarray) -> np.ndarray:
    """Return what decides the boxes of samples ``indices`` (B,) in ``epoch``: uniform numbers (B, V, TRIES, 4)."""
    drawn = uniforms(seed, "crop", epoch, numbers=indices, count=config.num_views * TRIES * 4)
    return drawn.reshape(-1, config.num_views, TRIES, 4)


def crop_boxes(config: CropConfig, sizes: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """Return the boxes of all views of B samples, int64 (B, V, 4), global ones first.

    ``sizes`` int64 (B, 2): height and width of their images; ``draws`` (B, V, TRIES, 4) of :func:`crop_draws`.
    """
    views = config.num_views
    scales = [config.global_scale] * config.num_global + [config.local_scale] * config.num_local
    heights, widths = np.repeat(sizes, views, axis=0).T
    tiled = np.tile(np.array(scales, dtype=np.float64), (len(sizes), 1))
    return draw_boxes(draws.reshape(-1, TRIES, 4), heights, widths, tiled).reshape(len(sizes), views, 4)


def resize_crop(image: torch.Tensor, box: Sequence[int], size: int) -> torch.Tensor:
    """Cut ``box`` (top, left, height, width) from uint8 (H, W, 3) and resize it to uint8 (size, size, 3).

    Rows are resized first, the result rounded to 8 bits, then columns, as Pillow does.
    """
    top, left, height, width = box
    crop = image[None, top : top + height, left : left + width]
    if (height, width) == (size, size):
        return crop[0]
    # Interleaved bytes in and out: torch then resizes all channels at once, thrice as fast as from planes.
    resized = torch.nn.functional.interpolate(crop.permute(0, 3, 1, 2), (size, size), mode="bicubic", antialias=True)
    return resized[0].permute(1, 2, 0)


def write_crops(
    image: torch.Tensor, boxes: Sequence[Sequence[int]], globals_: torch.Tensor, locals_: torch.Tensor
) -> None:
    """Write the crops of one image (uint8 (H, W, 3)) into ``globals_`` (2, S, S, 3) and ``locals_`` (L, s, s, 3)."""
    for view, box in enumerate(boxes):
        target = globals_[view] if view < len(globals_) else locals_[view - len(globals_)]
        target.copy_(resize_crop(image, box, target.shape[0]))


# --- on the device -------------------------------------------------------------------------------------


def cut(pixels: Tensor, first: np.ndarray, widths: np.ndarray, boxes: np.ndarray, size: int) -> Tensor:
    """Cut N boxes from images that lie one after the other in memory, and resize them.

    Args:
        pixels: uint8 (P, 3): the images, row by row.
        first: int64 (N,): the pixel where the image of each box begins.
        widths: int64 (N,): the width of that image.
        boxes: int64 (N, 4): top, left, height, width of each box, inside its image.
        size: side of the crops.

    Returns:
        uint8 (N, 3, size, size) on the device of ``pixels``. On a CPU the workers' own resize does it, many times
        faster there than matrix products.
    """
    if pixels.device.type != "cpu":
        return cut_by_products(pixels, first, widths, boxes, size)
    crops = torch.empty(len(boxes), size, size, 3, dtype=torch.uint8)
    for row, (start, width, box) in enumerate(zip(first.tolist(), widths.tolist(), boxes.tolist(), strict=True)):
        rows = box[0] + box[2]
        crops[row].copy_(resize_crop(pixels[start : start + rows * width].view(rows, width, 3), box, size))
    return crops.permute(0, 3, 1, 2)


def cut_by_products(pixels: Tensor, first: np.ndarray, widths: np.ndarray, boxes: np.ndarray, size: int) -> Tensor:
    """As :func:`cut`, by batched matrix products on the device of ``pixels``; boxes of like size go together."""
    device = pixels.device
    heights, lengths = boxes[:, 2], boxes[:, 3]
    corner = first + boxes[:, 0] * widths + boxes[:, 1]
    order = np.argsort(heights * lengths, kind="stable")
    table = torch.from_numpy(np.stack([order, corner[order], widths[order], heights[order], lengths[order]]))
    table = table.to(device, non_blocking=True)
    crops = torch.empty(len(boxes), 3, size, size, dtype=torch.uint8, device=device)
    with torch.autocast(device.type, enabled=False), exact_products(device):
        for chunk in _chunks(heights[order], lengths[order]):
            rows, columns = int(heights[order][chunk].max()), int(lengths[order][chunk].max())
            where, at, width, height, length = table[:, chunk]
            crops.index_copy_(0, where, _resize(pixels, at, width, height, length, (rows, columns), size))
    return crops


def _chunks(heights: np.ndarray, lengths: np.ndarray) -> Iterator[slice]:
    """Cut the boxes into stretches whose windows, all as large as the largest, hold at most CHUNK_PIXELS pixels."""
    start = 0
    for stop in range(1, len(heights) + 1):
        upto = slice(start, stop + 1)
        if stop == len(heights) or heights[upto].max() * lengths[upto].max() * (stop + 1 - start) > CHUNK_PIXELS:
            yield slice(start, stop)
            start = stop


def _resize(
    pixels: Tensor,
    corner: Tensor,
    width: Tensor,
    height: Tensor,
    length: Tensor,
    largest: tuple[int, int],
    size: int,
) -> Tensor:
    """Resize n windows, padded to the ``largest`` height and width by repeated pixels, to uint8 (n, 3, size, size).

    Each window begins at pixel ``corner`` of an image of ``width``; all int64 (n,).
    """
    count, (rows, columns) = len(corner), largest
    down = torch.arange(rows, device=pixels.device).minimum(height[:, None] - 1) * width[:, None]
    right = torch.arange(columns, device=pixels.device).minimum(length[:, None] - 1)
    where = (corner[:, None] + down)[:, :, None] + right[:, None, :]
    window = pixels.index_select(0, where.flatten()).view(count, rows, columns, 3).permute(0, 1, 3, 2)
    window = window.to(torch.float32, memory_format=torch.contiguous_format).view(count, rows * 3, columns)
    narrow = _bytes(torch.bmm(window, _weights(length, columns, size).transpose(1, 2)))
    crop = _bytes(torch.bmm(_weights(height, rows, size), narrow.view(count, rows, 3 * size)))
    return crop.view(count, size, 3, size).permute(0, 2, 1, 3).to(torch.uint8)


def _weights(lengths: Tensor, longest: int, size: int) -> Tensor:
    """Weights of the resize of n signals to ``size`` samples, float32 (n, size, longest), 0 beyond each ``lengths``.

    Pillow's: Keys' cubic (a = -1/2), stretched by the scale where that is above 1, cut off at the signal's ends and
    normalised; then rounded to fractions of a power of two, as torch's 8-bit resize does to calculate in 16 bits.
    """
    scale = lengths.to(torch.float32).view(-1, 1, 1) / size
    stretch = scale.clamp(min=1)
    taps = torch.arange(longest, device=lengths.device)
    centre = (torch.arange(size, device=lengths.device).view(1, -1, 1) + 0.5) * scale
    x = ((taps + 0.5 - centre) / stretch).abs_()
    near = (1.5 * x - 2.5) * x * x + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    weights = torch.where(x < 1, near, torch.where(x < 2, far, 0.0)) * (taps < lengths.view(-1, 1, 1))
    weights = weights / weights.sum(dim=2, keepdim=True)
    step = torch.exp2(torch.ceil(torch.log2(PEAK / weights.amax(dim=(1, 2), keepdim=True))) - 1)
    return torch.floor(weights * step + 0.5) / step


def _bytes(values: Tensor) -> Tensor:
    return values.add_(0.5).floor_().clamp_(0, 255)


# --- for evaluation --------------------------------------------------------------------------------------


def resize(image: Tensor, height: int, width: int) -> Tensor:
    """Resize uint8 (3, H, W) to (3, height, width), bicubic with antialiasing; no copy if it has that size."""
    if image.shape[1:] == (height, width):
        return image
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
