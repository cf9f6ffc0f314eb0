"""Intervals of the mIoU: of the classes that the images have, and never without their own value."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.miou_intervals import coverage, population
from dinoskip.statistics import interval
from eval.intervals import miou_interval
from eval.metrics import scores_of_areas


def test_areas_are_those_of_records() -> None:
    rng = np.random.default_rng(0)
    right = rng.integers(0, 20, (30, 4))
    areas = np.stack([right, right + rng.integers(0, 9, (30, 4)), right + rng.integers(0, 9, (30, 4))], 1)
    union = areas[:, 1] + areas[:, 2] - right
    assert miou_interval(areas) == interval(np.stack([right, union], -1), areas[:, 2].sum(0))
    low, high = miou_interval(areas)
    assert low < scores_of_areas(areas.sum(0)).miou < high


def test_the_majority_class_lies_inside_its_interval() -> None:
    """majority class 6.0 [6.5, 12.6]: classes of few images were absent from most resamples."""
    whole = population(150, 300, seed=3)
    labelled = whole.labelled.astype(np.int64)
    areas = np.zeros((300, 3, 150), dtype=np.int64)
    areas[:, 2], areas[:, 1, 0], areas[:, 0, 0] = labelled, labelled.sum(1), labelled[:, 0]
    low, high = miou_interval(areas)
    assert low <= scores_of_areas(areas.sum(0)).miou <= high < 0.05


@pytest.mark.parametrize(("kind", "classes", "images"), [("usual", 21, 50), ("usual", 60, 100), ("poor", 150, 50)])
def test_intervals_hold_the_populations_miou(kind: str, classes: int, images: int) -> None:
    """93 % at least, less three standard errors of so many samples.

    A poor network predicts many classes that are nowhere labelled; taken to be as good as the others they moved the
    whole interval above the truth.
    """
    held, _ = coverage(population(classes, 1500, poor=kind == "poor"), images, 80)
    assert held >= 100 * (0.93 - 3 * math.sqrt(0.93 * 0.07 / 80))


def test_of_none_it_is_nan() -> None:
    for nothing in (np.zeros((0, 3, 2), int), np.zeros((4, 3, 2), int)):
        assert all(math.isnan(end) for end in miou_interval(nothing))
