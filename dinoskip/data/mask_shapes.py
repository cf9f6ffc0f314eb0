"""Counts of how the values of masks lie, by which numbers of objects, swapped and interpolated masks are told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dinoskip.data.class_lists import is_background
from dinoskip.data.segmentation import IGNORE
from dinoskip.io.images import opencv

_VALUES = 256  # of a mask of 8 bits
_ON_RIM = 0.05  # of the rim of an image: a background that has no more is surrounded by the object


class MaskShapes:
    """Counts of how the values of masks lie: numbered in order, enclosed by others, graded along borders."""

    def __init__(self, names: Sequence[str], numbers: Sequence[int]) -> None:
        background = next((number for number, name in enumerate(names) if is_background(name)), None)
        self.background = np.array([number == background for number in numbers])
        self.ignored = np.array([number == IGNORE for number in numbers])
        self.in_order, self.graded, self.solid = (np.zeros(_VALUES, dtype=np.int64) for _ in range(3))
        self.with_objects, self.enclosed, self.with_background, self.border = 0, 0, 0, 0

    def counts(self) -> dict[str, Any]:
        """Return the counts, by the names of :class:`dinoskip.data.label_values.LabelValues`."""
        tables = {name: tuple(getattr(self, name).tolist()) for name in ("in_order", "graded", "solid")}
        sums = {name: getattr(self, name) for name in ("with_objects", "enclosed", "with_background", "border")}
        return {**tables, **sums}

    def add(self, labels: NDArray[np.uint8], held: NDArray[np.bool_]) -> None:
        """Count a mask (H, W); ``held`` are the values that it has."""
        objects = [value for value in np.flatnonzero(held).tolist() if value not in {0, IGNORE}]
        self.with_objects += bool(objects)
        self.in_order[len(objects)] += bool(objects) and objects[-1] == len(objects)
        if (self.background & held).any():
            rim = np.concatenate([labels[0], labels[-1], labels[:, 0], labels[:, -1]])
            rim = rim[~self.ignored[rim]]
            self.with_background += 1
            self.enclosed += bool(rim.size and self.background[rim].mean() <= _ON_RIM)
        self._add_graded(labels)

    def _add_graded(self, labels: NDArray[np.uint8]) -> None:
        cv2, square = opencv(), np.ones((3, 3), np.uint8)
        low, high = np.asarray(cv2.erode(labels, square)), np.asarray(cv2.dilate(labels, square))
        flat = low == high
        solid = np.asarray(cv2.dilate(flat.astype(np.uint8), square)) > 0
        lower, higher = np.asarray(cv2.erode(low, square)), np.asarray(cv2.dilate(high, square))
        between = ~solid & (lower < labels) & (labels < higher) & (higher != IGNORE)
        self.graded += np.bincount(labels[between], minlength=_VALUES)
        self.solid += np.bincount(labels[solid], minlength=_VALUES)
        self.border += int((~flat & (high != IGNORE)).sum())
