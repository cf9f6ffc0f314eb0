"""Targets of the loss of linear heads, made from labels, and the points at which the loss is taken.

The loss of a head is the cross-entropy of its logits z (K, h, w), upsampled bilinearly to the label, averaged over
the labelled pixels. With U the upsampling and Y the one-hot labels its sum is

    sum_p logsumexp_k (U z_k)_p  -  sum_k <Y_k, U z_k>   =   sum_p logsumexp_k (U z_k)_p  -  sum_k <Uᵀ Y_k, z_k>

The second term needs only Uᵀ Y, K numbers a token, made once from the label at its full size: it is exact. The first
is smooth in p and is taken at nodes: the token centres and ``refine`` - 1 points between each two, along both axes;
each labelled pixel's weight is spread bilinearly on them. As the token centres are among the nodes, U factors through
them and no token gains or loses weight: the loss is never below the exact one (Jensen: logsumexp is convex), equal
where pixels fall on nodes, and nears it as 1 / refine². ``refine`` 1 is cross-entropy of tokens with soft labels;
``refine`` 0 takes the pixels themselves as nodes: the exact loss, for labels of one size.

Shapes: K classes, n images of h·w tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from dinoskip.runtime.environment import memory_limit
from eval.labelled import labels_ahead
from eval.upsampling import bilinear, interpolation, pixel_centres

Grid = tuple[int, int]
Label = Callable[[int], NDArray[np.uint8]]


@dataclass(frozen=True)
class Targets:
    """Targets of the loss for n labels, all float32.

    ``linear`` (n, K, h, w) = Uᵀ Y and ``weight`` (n, rows, columns) of the nodes; ``up`` (rows, h) and ``along``
    (columns, w) interpolate from tokens to nodes, None where the nodes are the tokens. An image's weights add up to the
    labelled part of its pixels, so every image counts by what is labelled of it and not by its size; for labels of one
    size this is the mean over pixels.
    """

    linear: torch.Tensor
    weight: torch.Tensor
    up: torch.Tensor | None
    along: torch.Tensor | None

    def to(self, device: torch.device) -> Targets:
        """Return a copy on another device."""
        up, along = (None if x is None else x.to(device, non_blocking=True) for x in (self.up, self.along))
        linear, weight = (x.to(device, non_blocking=True) for x in (self.linear, self.weight))
        return Targets(linear, weight, up, along)

    def rows(self, index: torch.Tensor) -> Targets:
        """Return those of images ``index``."""
        return Targets(self.linear[index], self.weight[index], self.up, self.along)


def node_interpolation(cells: int, refine: int) -> torch.Tensor:
    """Return float32 (nodes, cells): from tokens along one axis to the nodes of the loss, refine·(cells - 1) + 1."""
    return interpolation(torch.arange(refine * (cells - 1) + 1, dtype=torch.float64) / refine, cells)


@lru_cache(maxsize=64)
def _spread(size: int, cells: int, refine: int) -> torch.Tensor:
    """Return the interpolation from nodes to pixels along one axis; transposed, it spreads pixels on nodes."""
    return interpolation(pixel_centres(size, cells) * refine, refine * (cells - 1) + 1)


@lru_cache(maxsize=64)
def _pixels(size: int, cells: int) -> torch.Tensor:
    return bilinear(size, cells)


def _of_label(
    values: torch.Tensor, num_classes: int, grid: Grid, refine: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the classes (P,) that a label (H, W) has, their part (P, h, w) of Uᵀ Y, and the weights of the nodes."""
    present = torch.bincount(values.flatten(), minlength=256)[:num_classes].nonzero()[:, 0]
    onehot = (values == present[:, None, None].to(values.dtype)).float() / values.numel()
    sizes = list(zip(values.shape, grid, strict=True))
    if refine == 0:
        down, across = (_pixels(size, cells) for size, cells in sizes)
        return present, down.T @ (onehot @ across), onehot.sum(0)
    down, across = (_spread(size, cells, refine) for size, cells in sizes)
    fine = down.T @ (onehot @ across)
    to_rows, to_columns = (node_interpolation(cells, refine) for cells in grid)
    return present, to_rows.T @ (fine @ to_columns), fine.sum(0)


def _to_nodes(size: int, cells: int, refine: int) -> torch.Tensor | None:
    if refine == 1:
        return None
    return node_interpolation(cells, refine) if refine else _pixels(size, cells)


def make_targets(label: Label, rows: Sequence[int], num_classes: int, grid: Grid, refine: int) -> Targets:
    """Read the label maps uint8 (H, W) of ``rows``; values that are not classes are ignored.

    With ``refine`` 0 all of them must be of one size.
    """
    linear = torch.zeros(len(rows), num_classes, *grid)
    weights: list[torch.Tensor] = []
    size: Sequence[int] = grid
    for at, read in enumerate(labels_ahead(label, rows)):
        values = torch.from_numpy(np.ascontiguousarray(read))
        present, linear[at, present], weight = _of_label(values, num_classes, grid, refine)
        weights.append(weight)
        size = values.shape
    up, along = (_to_nodes(pixels, cells, refine) for pixels, cells in zip(size, grid, strict=True))
    return Targets(linear, torch.stack(weights), up, along)


class CachedTargets:
    """Targets of images ``rows``, kept on the device if they fit; if not, made again of every batch.

    They fit in a quarter of ``memory_limit()``.
    """

    def __init__(
        self, label: Label, rows: NDArray[np.int64], num_classes: int, grid: Grid, refine: int, device: torch.device
    ) -> None:
        self._label, self._classes, self._grid, self._refine = label, num_classes, grid, refine
        self._all: Targets | None = None
        self._position = {int(row): at for at, row in enumerate(rows)}
        self._device = device
        first = self._make(rows[:1])
        if 4 * len(rows) * (first.linear.numel() + first.weight.numel()) <= memory_limit() // 4:
            self._all = self._make(rows)

    def _make(self, rows: NDArray[np.int64]) -> Targets:
        targets = make_targets(self._label, rows.tolist(), self._classes, self._grid, self._refine)
        return targets.to(self._device)

    def batch(self, rows: NDArray[np.int64]) -> Targets:
        """Return those of ``rows``, which must be among the first ones."""
        if self._all is None:
            return self._make(rows)
        places = torch.tensor([self._position[int(row)] for row in rows])
        return self._all.rows(places.to(self._device, non_blocking=True))


def nearest(size: int, pixels: int) -> NDArray[np.int64]:
    """Return which of ``size`` pixels along an axis lies nearest to each of ``pixels`` of the same picture."""
    # By the centres of pixels, as Pillow. The protocols' code has OpenCV or torch, which take the pixel at the corner
    # and shift labels by up to half a pixel against the image, which is resized by centres.
    return np.minimum(((np.arange(pixels) + 0.5) * size / pixels).astype(np.int64), size - 1)


def masked(label: NDArray[np.uint8], side: int | None) -> NDArray[np.uint8]:
    """Return a label (H, W) brought to (side, side) by nearest neighbour, or as it is."""
    if side is None:
        return label
    return label[np.ix_(nearest(label.shape[0], side), nearest(label.shape[1], side))]
