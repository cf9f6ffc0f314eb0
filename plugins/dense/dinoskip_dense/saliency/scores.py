"""Scores of saliency maps: F by threshold, IoU and accuracy, as TokenCut's ``metric.py`` counts them.

beta^2 is 0.3. F is taken of each image, averaged over images at each of 255 thresholds, and the largest average is the
data set's (maxF). Precision is 1 where nothing is predicted, recall 1 where nothing is there, F 0 where both are 0.
Pixels whose truth is 255 are left out; every other value but 0 is the object.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dinoskip.data.segmentation import IGNORE

F64 = NDArray[np.float64]
BETA2 = 0.3  # precision weighs more than recall: Achanta et al. 2009, and TokenCut's metric.py
THRESHOLDS: F64 = np.arange(255) / 255
"""A pixel is predicted where its value is greater, k / 255 for k = 0..254."""


@dataclass(frozen=True)
class MaskCounts:
    """Pixels of L masks of one image: right, predicted, of the object, all that count; int64, (L,) or one number."""

    right: NDArray[np.int64]
    predicted: NDArray[np.int64]
    there: NDArray[np.int64]
    pixels: NDArray[np.int64]

    @property
    def iou(self) -> F64:
        """Intersection over union, (L,); 1 where both are empty (the reference divides 0 by 0)."""
        union = self.predicted + self.there - self.right
        return _ratio(self.right, union, 1.0)

    @property
    def accuracy(self) -> F64:
        """Share of pixels that are right, background included, (L,); 1 of no pixel."""
        wrong = self.predicted + self.there - 2 * self.right
        return 1.0 - _ratio(wrong, self.pixels, 0.0)

    @property
    def f(self) -> F64:
        """F-measure at each of the L thresholds, (L,)."""
        return f_score(self.right, self.predicted, self.there)


def count_masks(masks: NDArray[np.bool_], truth: NDArray[np.uint8]) -> MaskCounts:
    """Count the pixels of masks (L, H, W) of an image with ``truth`` (H, W)."""
    known = truth != IGNORE
    there = known & (truth != 0)
    right, predicted = ((masks & pixels).sum((1, 2)) for pixels in (there, known))
    return MaskCounts(right, predicted, np.full(len(masks), there.sum()), np.full(len(masks), known.sum()))


def f_score(right: NDArray[np.int64], predicted: NDArray[np.int64], there: NDArray[np.int64]) -> F64:
    """Return F of numbers of pixels (...): right, predicted, of the object."""
    precision, recall = _ratio(right, predicted, 1.0), _ratio(right, there, 1.0)
    return _ratio((1 + BETA2) * precision * recall, BETA2 * precision + recall, 0.0)


def _ratio(top: NDArray[Any], bottom: NDArray[Any], otherwise: float) -> F64:
    """``top`` / ``bottom`` of one shape, ``otherwise`` where ``bottom`` is 0."""
    ratio: F64 = np.divide(top, bottom, out=np.full(top.shape, otherwise), where=bottom > 0)
    return ratio


def f_curve(soft: NDArray[np.floating], truth: NDArray[np.uint8]) -> F64:
    """Return F (255,) of a soft map (H, W) at every threshold of :data:`THRESHOLDS`; values beyond 0..1 count, too."""
    known = truth != IGNORE
    below = np.searchsorted(THRESHOLDS, soft[known].astype(np.float64))  # thresholds that a pixel exceeds
    there = truth[known] != 0
    predicted, right = (np.bincount(below[which], minlength=256) for which in (slice(None), there))
    over = [np.cumsum(counts[::-1])[::-1][1:] for counts in (right, predicted)]  # k + 1 or more: value > k / 255
    return f_score(over[0], over[1], np.full(255, there.sum()))
