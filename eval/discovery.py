"""Scores of unsupervised object discovery: whether a box hits, and CorLoc."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike


def is_hit(predicted: ArrayLike, truth: ArrayLike, threshold: float = 0.5) -> bool:
    """Whether a box (4,) overlaps any of the boxes (K, 4) with IoU >= threshold, exactly one half included.

    Nothing is divided, so that boxes of whole pixels are compared without rounding.
    """
    box = np.asarray(predicted, dtype=np.float64).reshape(4)
    others = np.asarray(truth, dtype=np.float64).reshape(-1, 4)
    ratio = Fraction(str(threshold))
    sides = np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2])
    inter = np.clip(sides, 0, None).prod(axis=1)
    union = (box[2:] - box[:2]).prod() + (others[:, 2:] - others[:, :2]).prod(axis=1) - inter
    return bool((inter * ratio.denominator >= union * ratio.numerator)[union > 0].any())


def corloc(predicted: Sequence[ArrayLike], ground_truth: Sequence[ArrayLike], threshold: float = 0.5) -> float:
    """Return the part (0..1) of the images whose one predicted box hits any ground-truth box.

    ``predicted`` holds a box (4,) and ``ground_truth`` boxes (K, 4) for each image. The denominator is all images: one
    without any ground-truth box counts as a miss. No image gives nan. Raises ValueError if the lengths differ.
    """
    if len(predicted) != len(ground_truth):
        raise ValueError(f"{len(predicted)} predicted boxes for {len(ground_truth)} images")
    if not len(predicted):
        return float("nan")
    hits = sum(is_hit(box, truth, threshold) for box, truth in zip(predicted, ground_truth, strict=True))
    return hits / len(predicted)
