"""Crops cut where the images lie, on a device: all boxes of a batch by two batched matrix products.

Resizing is separable and linear, so a crop is ``A_h · window · A_wᵀ`` with one small weight matrix per side, built from
the box. Between and after the products values are rounded and clamped to 8 bits, as the workers' resize
(:func:`dinoskip.data.crops.resize_crop`) does; the two differ by 1 grey level where rounding fell otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from dinoskip.data.crops import resize_crop
from dinoskip.runtime.precision import exact_products

PEAK = 2.0**15 - 0.5  # the largest weight of a signal, in torch's fractions
CHUNK_PIXELS = 1 << 24  # of the windows that are on the device at a time; about 30 bytes each


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
    """Cut as :func:`cut` does, by batched matrix products on the device of ``pixels``, boxes of like size together."""
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
    # (a + 2) x³ - (a + 3) x² + 1 below 1, and a x³ - 5a x² + 8a x - 4a below 2.
    near = (1.5 * x - 2.5) * x * x + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    weights = torch.where(x < 1, near, torch.where(x < 2, far, 0.0)) * (taps < lengths.view(-1, 1, 1))
    weights = weights / weights.sum(dim=2, keepdim=True)
    step = torch.exp2(torch.ceil(torch.log2(PEAK / weights.amax(dim=(1, 2), keepdim=True))) - 1)
    return torch.floor(weights * step + 0.5) / step


def _bytes(values: Tensor) -> Tensor:
    return values.add_(0.5).floor_().clamp_(0, 255)
