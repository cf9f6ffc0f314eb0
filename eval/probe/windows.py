"""Segmentation by sliding windows, as mmsegmentation's ``slide`` mode, without its full-size logits.

There every window's logits are resized to the window's pixels, summed over windows, divided by how many cover a pixel,
and the result is resized to the label. Each of these is linear, and windows stand on a grid of rows and columns, so the
whole is one matrix along either axis: label = rows · Z · columnsᵀ, with Z (ny·h, nx·w) the logits of all windows.
"""

from __future__ import annotations

from functools import lru_cache

import torch

from eval.upsampling import bilinear

_BAND = {"cpu": 2**20, "cuda": 2**26}  # logits at label size held at once


def window_starts(size: int, window: int, stride: int) -> list[int]:
    """Return where windows begin along an axis of ``size`` pixels; the last one is moved back to end with it."""
    count = max(size - window + stride - 1, 0) // stride + 1
    return [max(min(i * stride, size - window), 0) for i in range(count)]


@lru_cache(maxsize=256)
def blending(label: int, size: int, window: int, stride: int, cells: int, device: torch.device) -> torch.Tensor:
    """Return float32 (label, windows · cells): from all windows' cells along one axis to the label's pixels.

    ``size`` pixels of the resized image, windows of min(``window``, ``size``) pixels with ``cells`` tokens each.
    """
    window = min(window, size)
    starts = window_starts(size, window, stride)
    matrix, covered = torch.zeros(size, len(starts) * cells), torch.zeros(size, 1)
    for i, start in enumerate(starts):
        matrix[start : start + window, i * cells : (i + 1) * cells] = bilinear(window, cells)
        covered[start : start + window] += 1
    return (bilinear(label, size) @ (matrix / covered)).to(device, non_blocking=True)


def blended_classes(logits: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """Return the best class (L, H, W) of logits (L, K, ny, nx, h, w) of windows, rows (H, ny·h), columns (W, nx·w)."""
    cells = logits.transpose(3, 4).flatten(4, 5).flatten(2, 3)
    wide = cells @ columns.T
    band = max(1, _BAND[cells.device.type] // (wide.shape[0] * wide.shape[1] * wide.shape[3]))
    return torch.cat([(rows[at : at + band] @ wide).max(1).indices for at in range(0, len(rows), band)], 1)
