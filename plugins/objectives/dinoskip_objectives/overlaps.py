"""Rectangles that two views of an image have in common, in patches of each view.

Patch alignment compares the features in them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

F64 = NDArray[np.float64]
Boxes = NDArray[np.int64] | F64


@dataclass(frozen=True)
class Overlaps:
    """Pairs of a sample's views: local crop i with global crop i mod 2; without local ones each global with the other.

    ``global_grid`` and ``local_grid`` are patches a side of a global crop and of what it is compared with.
    """

    global_grid: int
    local_grid: int
    num_local: int
    all_views = True

    def __call__(self, epoch: int, indices: np.ndarray, boxes: np.ndarray, flips: np.ndarray) -> list[Tensor]:
        """Return what is common to P pairs of views, pair-major over B images.

        ``student`` and ``teacher`` are float32 (P, 5), ``turned`` bool (P, 2), ``valid`` bool (P,).
        The first column of the former two is the number of the view (over its kind, view-major), the others x0, y0, x1,
        y1 of the common rectangle in its patches, as the view is stored. ``turned``: whether the student's and the
        teacher's view is flipped. ``valid``: whether the rectangle is at least one of the student's patches wide and
        high. ``boxes`` int64 (B, V, 4): top, left, height, width; ``flips`` bool (B, V). Nothing is drawn.
        """
        count = len(boxes)
        pairs = [(2 + local, local % 2) for local in range(self.num_local)] or [(0, 1), (1, 0)]
        offset = 2 if self.num_local else 0
        parts = []
        for student_view, teacher_view in pairs:
            sides = [(boxes[:, view], flips[:, view], grid) for view, grid in
                     ((student_view, self.local_grid), (teacher_view, self.global_grid))]  # fmt: skip
            first = [(student_view - offset) * count, teacher_view * count]
            common, valid = intersections(boxes[:, student_view], boxes[:, teacher_view], self.local_grid)
            rows = [
                np.concatenate([(start + np.arange(count))[:, None], in_patches(common, *side)], axis=1)
                for start, side in zip(first, sides, strict=True)
            ]
            parts.append((*rows, np.stack([flips[:, student_view], flips[:, teacher_view]], axis=1), valid))
        student, teacher, turned, valid = (np.concatenate(part) for part in zip(*parts, strict=True))
        return [torch.from_numpy(array.astype(np.float32)) for array in (student, teacher)] + [
            torch.from_numpy(array) for array in (turned, valid)
        ]


def intersections(boxes: Boxes, other: Boxes, cells: int) -> tuple[F64, NDArray[np.bool_]]:
    """Common rectangles (n, 4), x0 y0 x1 y1, of boxes (n, 4), top left height width, and whether they suffice.

    They do if they are at least one of ``cells`` × ``cells`` cells of ``boxes`` wide and high.
    """
    low = np.maximum(boxes[:, :2], other[:, :2])
    high = np.minimum(boxes[:, :2] + boxes[:, 2:], other[:, :2] + other[:, 2:])
    valid: NDArray[np.bool_] = np.all(high - low >= boxes[:, 2:] / cells, axis=1)
    return np.concatenate([low[:, ::-1], high[:, ::-1]], axis=1), valid


def in_patches(rectangles: F64, boxes: Boxes, flips: NDArray[np.bool_], grid: int) -> F64:
    """Rectangles (n, 4) of an image in the patches of a view each, ``grid`` a side, as it is stored, within it."""
    top, left, height, width = boxes.T
    x = (rectangles[:, [0, 2]] - left[:, None]) / width[:, None] * grid
    y = (rectangles[:, [1, 3]] - top[:, None]) / height[:, None] * grid
    x = np.where(flips[:, None], grid - x[:, ::-1], x)
    placed: F64 = np.clip(np.stack([x[:, 0], y[:, 0], x[:, 1], y[:, 1]], axis=1), 0, grid)
    return placed
