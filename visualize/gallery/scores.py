"""Scores of one image, one model and one block, by which the gallery sorts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dinoskip.data.segmentation import IGNORE
from visualize.rasters import nearest


def image_scores(prediction: np.ndarray, label: np.ndarray) -> dict[str, float]:
    """Percent: ``right``, labelled pixels of ``label`` (H, W) that ``prediction`` (any size) gets right, and ``miou``.

    The mIoU of one image is the mean over the classes in its label or prediction: good for sorting, and no substitute
    for the data set's, which sums pixels over all images. Empty without a labelled pixel.
    """
    known = label != IGNORE
    if not known.any():
        return {}
    guess, truth = nearest(prediction, label.shape[:2])[known], label[known]
    hits = np.bincount(truth[guess == truth], minlength=256)
    union = np.bincount(guess, minlength=256) + np.bincount(truth, minlength=256) - hits
    present = union > 0
    return {
        "right": float(100.0 * hits.sum() / len(truth)),
        "miou": float(100.0 * (hits[present] / union[present]).mean()),
    }


def best_iou(box: Sequence[float], truth: np.ndarray) -> float | None:
    """Largest IoU of a box (x1, y1, x2, y2, end exclusive) with any of ``truth`` (K, 4); None if there is none."""
    if len(truth) == 0:
        return None
    predicted, others = np.asarray(box, np.float64), np.asarray(truth, np.float64).reshape(-1, 4)
    inner = np.minimum(predicted[2:], others[:, 2:]) - np.maximum(predicted[:2], others[:, :2])
    overlap = np.prod(np.maximum(inner, 0.0), axis=1)
    areas = np.prod(others[:, 2:] - others[:, :2], axis=1) + np.prod(predicted[2:] - predicted[:2])
    return float((overlap / np.maximum(areas - overlap, 1e-12)).max())  # two empty boxes have no union


def mean_cosine(tokens: np.ndarray) -> float | None:
    """Mean cosine similarity between two different tokens of (T, C): 1 where all are one. None below two, or of nan."""
    count = len(tokens)
    if count < 2 or not np.isfinite(tokens).all():
        return None
    unit = tokens / np.maximum(np.linalg.norm(tokens, axis=1, keepdims=True), 1e-12)
    total = unit.sum(axis=0, dtype=np.float64)
    of_each_token = float(np.square(unit, dtype=np.float64).sum())  # count, unless a token is zero
    return float((total @ total - of_each_token) / (count * (count - 1)))
