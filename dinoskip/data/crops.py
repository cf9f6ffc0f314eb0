"""Crops of one decoded image, cut and resized by a worker without leaving 8 bits.

A training crop is ``torchvision.transforms.RandomResizedCrop``'s (area and log aspect ratio drawn up to ten times, then
the central fallback); the resize is bicubic with antialiasing, on the interleaved bytes of the decoder.
``device_crops.py`` cuts the same boxes on a device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from dinoskip.data.config import CropConfig
from dinoskip.runtime.randomness import uniforms

# Defaults of torchvision's RandomResizedCrop, which DataAugmentationDINO leaves as they are.
RATIO = (3 / 4, 4 / 3)
TRIES = 10  # as there; drawn for every box, so that one box's misses do not shift the next one's numbers


def num_views(config: CropConfig) -> int:
    """Global and local crops together."""
    return config.num_global + config.num_local


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
    drawn = uniforms(seed, "crop", epoch, numbers=indices, count=num_views(config) * TRIES * 4)
    return drawn.reshape(-1, num_views(config), TRIES, 4)


def crop_boxes(config: CropConfig, sizes: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """Return the boxes of all views of B samples, int64 (B, V, 4), global ones first.

    ``sizes`` int64 (B, 2): height and width of their images; ``draws`` (B, V, TRIES, 4) of :func:`crop_draws`.
    """
    views = num_views(config)
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
