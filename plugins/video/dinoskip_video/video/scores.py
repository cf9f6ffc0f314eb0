"""J and F of video object segmentation (Perazzi et al. 2016), as the DAVIS 2017 evaluation has them.

Shapes: K objects, H·W pixels, n frames.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
Bool = NDArray[np.bool_]
_TOLERANCE = 0.008  # of the diagonal: how far apart boundaries may lie


class ObjectScores(NamedTuple):
    """Mean, recall (share of frames above 0.5) and decay (first less last quarter) of each object, each (K,)."""

    mean: F64
    recall: F64
    decay: F64


def frame_scores(predicted: NDArray[np.uint8], truth: NDArray[np.uint8], objects: int) -> F64:
    """Return J and F (K, 2) of objects 1..K in one frame, label maps (H, W); 255 in the truth is background.

    J is intersection over union, 1 where both are empty. F is the harmonic mean of the shares of predicted and true
    boundary pixels that lie within ceil(0.008 · diagonal) of the other boundary. Raises ValueError for a larger id than
    ``objects`` in the prediction.
    """
    if int(predicted.max(initial=0)) > objects:
        raise ValueError(f"object {int(predicted.max())} is predicted, there are {objects}")
    radius = math.ceil(_TOLERANCE * math.hypot(*truth.shape))
    scores = np.empty((objects, 2))
    for number in range(1, objects + 1):
        ours, theirs = predicted == number, truth == number
        union = int((ours | theirs).sum())
        scores[number - 1, 0] = int((ours & theirs).sum()) / union if union else 1.0
        scores[number - 1, 1] = _boundary_f(ours, theirs, radius)
    return scores


def boundary(mask: Bool) -> Bool:
    """Return the pixels (H, W) that differ from their right, lower or lower right neighbour inside the image."""
    right, lower = (np.zeros_like(mask) for _ in range(2))
    right[:, :-1] = mask[:, :-1] != mask[:, 1:]
    lower[:-1] = mask[:-1] != mask[1:]
    edge: Bool = right | lower
    edge[:-1, :-1] |= mask[:-1, :-1] != mask[1:, 1:]
    return edge


def _boundary_f(predicted: Bool, truth: Bool, radius: int) -> float:
    ours, theirs = boundary(predicted), boundary(truth)
    found_pixels, wanted = int(ours.sum()), int(theirs.sum())
    if not found_pixels or not wanted:
        return float(not found_pixels and not wanted)
    rows, columns = (np.flatnonzero((ours | theirs).any(axis)) for axis in (1, 0))
    part = np.s_[
        max(0, rows[0] - radius) : rows[-1] + radius + 1, max(0, columns[0] - radius) : columns[-1] + radius + 1
    ]
    steps = np.arange(-radius, radius + 1)
    disk = (steps[:, None] ** 2 + steps**2 <= radius**2).astype(np.uint8)
    near_theirs, near_ours = (cv2.dilate(np.ascontiguousarray(edge[part], np.uint8), disk) for edge in (theirs, ours))
    precision = int((ours[part] & (near_theirs > 0)).sum()) / found_pixels
    recall = int((theirs[part] & (near_ours > 0)).sum()) / wanted
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def object_scores(values: F64) -> ObjectScores:
    """Return mean, recall and decay over frames of scores (K, n); n is 1 or more.

    Quarters share their ends, as in the evaluation of DAVIS: with few frames they overlap.
    """
    # 1e-10 as davis2017-evaluation: halves are rounded up, and not to even numbers.
    ends = np.round(np.linspace(1, values.shape[1], 5) + 1e-10).astype(int) - 1
    quarters = [values[:, first : last + 1].mean(1) for first, last in itertools.pairwise(ends)]
    return ObjectScores(values.mean(1), (values > 0.5).mean(1), quarters[0] - quarters[-1])
