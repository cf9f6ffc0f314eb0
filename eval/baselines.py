"""What rules that look at no image score on the same data: the floor that a model's numbers stand on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dinoskip.records import RecordedRow, areas_record
from dinoskip.results import EvalResult
from dinoskip.statistics import wilson
from eval.intervals import miou_interval
from eval.metrics import scores_of_areas

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


def hits_row(like: EvalResult, hits: ArrayLike) -> RecordedRow:
    """Return ``like`` with the share of hits, bool (n,), as its value in percent, and their Wilson interval."""
    flags = np.asarray(hits, dtype=bool)
    low, high = wilson(int(flags.sum()), flags.size)
    value = float(flags.mean()) if flags.size else float("nan")
    row = replace(like, value=100 * value, low=100 * low, high=100 * high)
    return RecordedRow(row, flags.astype(np.uint8))


def discovery_baselines(hits: Mapping[str, Sequence[bool]], like: EvalResult) -> list[RecordedRow]:
    """Return the CorLoc rows of rules (of :data:`BOXES`), whose box hits in each image or not.

    ``like`` is a model's row on the same images.
    """
    return [hits_row(like.baseline(name, 0.0), flags) for name, flags in hits.items()]


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


def segmentation_baselines(train: NDArray[np.integer], val: NDArray[np.integer], like: EvalResult) -> list[RecordedRow]:
    """Return the mIoU row of ``majority class``, by the pixels of :func:`majority_areas`."""
    areas = majority_areas(train, val)
    low, high = miou_interval(areas)
    row = like.baseline("majority class", 100 * scores_of_areas(areas.sum(0)).miou, 100 * low, 100 * high)
    return [RecordedRow(row, areas_record(areas))]


def classification_baselines(
    train: NDArray[np.int64], val: NDArray[np.int64], classes: int, like: EvalResult
) -> list[RecordedRow]:
    """Return the accuracy rows of ``majority class`` (of the training labels) and ``chance``, 1 / classes."""
    majority = hits_row(like.baseline("majority class", 0.0), val == np.bincount(train).argmax())
    return [majority, RecordedRow(like.baseline("chance", 100 / classes))]
