"""Scores on the same data of rules that look at no image: the floor that a model's numbers are compared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from dinoskip.results.records import RecordedRow
from dinoskip.results.rows import EvalResult
from eval.rows import hits_row

Box = tuple[float, float, float, float]


def full_image(height: int, width: int) -> Box:
    """Return the box of all of an image, x1 y1 x2 y2."""
    return 0.0, 0.0, float(width), float(height)


def centre_box(height: int, width: int) -> Box:
    """Return the box in the middle, with half the sides (a quarter of the area)."""
    return width / 4, height / 4, 3 * width / 4, 3 * height / 4


BOXES: Mapping[str, Callable[[int, int], Box]] = {"full image": full_image, "centre box": centre_box}


def boxes_as_masks(size: tuple[int, int]) -> dict[str, NDArray[np.bool_]]:
    """Return the boxes of :data:`BOXES` as masks (H, W) of an image of ``size``."""
    masks = {}
    for name, rule in BOXES.items():
        x1, y1, x2, y2 = (round(side) for side in rule(*size))
        masks[name] = np.zeros(size, dtype=np.bool_)
        masks[name][y1:y2, x1:x2] = True
    return masks


def majority_areas(train: NDArray[np.integer], val: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return areas (n, 3, K) of predicting everywhere the class with most training pixels.

    ``train`` and ``val`` are labelled pixels per image and class, (N, K) and (n, K). The first class of equals.
    """
    chosen = int(train.sum(0).argmax())
    areas = np.zeros((len(val), 3, val.shape[1]), dtype=np.int64)
    areas[:, 2] = val
    areas[:, 1, chosen] = val.sum(1)
    areas[:, 0, chosen] = val[:, chosen]
    return areas


def classification_baselines(
    train: NDArray[np.int64], val: NDArray[np.int64], classes: int, template: EvalResult
) -> list[RecordedRow]:
    """Return the accuracy rows of ``majority class`` (of the training labels) and ``chance``, 1 / classes."""
    majority = hits_row(template.baseline("majority class", 0.0), val == np.bincount(train).argmax())
    return [majority, RecordedRow(template.baseline("chance", 100 / classes))]
