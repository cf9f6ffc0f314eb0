"""Whether a box of unsupervised object discovery hits; CorLoc is the share of the images whose box does."""

from __future__ import annotations

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
