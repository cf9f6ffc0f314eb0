"""Result rows: their values, intervals and records."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.miou_intervals import coverage, population
from dinoskip.results.rows import EvalResult
from dinoskip.results.statistics import explained_interval, interval, score
from eval.metrics import scores_of_areas
from eval.rows import mean_record, mean_rows, miou_interval, miou_row, scored_rows
from tests.helpers.an_error import ANGLE, METRIC, distance_is_a_task

__all__ = ["distance_is_a_task"]

LIKE = EvalResult("", 0.0, "video", "3", "davis2017", "val", 4)
DISTANCE = EvalResult("", 0.0, "distance", "2", "nyu", "test", 0)


def test_the_mean_is_over_things_and_not_over_images() -> None:
    sums, counts = np.array([0.25, 1.5, 0, 2.75]), np.array([1, 2, 0, 3])
    rows = mean_rows(LIKE, [("J", mean_record(sums, counts)), ("F", mean_record(sums / 2, counts))])
    assert [one.row.metric for one in rows] == ["J", "F"]
    assert [one.row.value for one in rows] == pytest.approx([75, 37.5])
    assert rows[0].row.block == "3"
    for one in rows:
        assert one.values is not None
        assert 100 * score(one.values) == pytest.approx(one.row.value)
        assert one.row.low is not None
        assert one.row.high is not None
        assert one.row.low < one.row.value < one.row.high


def test_nothing_to_average_has_no_value() -> None:
    (one,) = mean_rows(LIKE, [("J", mean_record([0, 0], [0, 0]))])
    assert np.isnan([one.row.value, one.row.low, one.row.high]).all()


def test_errors_keep_their_unit_and_shares_become_percent() -> None:
    scores = np.array([[0.5, 0.9], [0.7, 0.6], [np.nan, np.nan]])
    error, share = scored_rows(DISTANCE, (METRIC, "delta1"), scores)
    assert (error.row.value, share.row.value) == pytest.approx((0.6, 75.0))
    assert (error.row.n, share.row.n) == (2, 2)
    for one in (error, share):
        assert one.values is not None
        assert 100 * np.nanmean(one.values) == pytest.approx(one.row.value)
        assert one.row.low is not None
        assert one.row.low <= one.row.value <= (one.row.high or 0)


def test_intervals_are_those_of_each_measure() -> None:
    values = np.random.default_rng(0).random((30, 2))
    values[4, 1] = np.nan
    error, share = scored_rows(DISTANCE, (METRIC, "delta1"), values)
    assert (error.row.low, error.row.high) == pytest.approx(interval(values[:, 0], errors=True))
    low, high = interval(values[:, 1])
    assert (share.row.low, share.row.high) == pytest.approx((100 * low, 100 * high))


def test_intervals_of_two_images_end_where_the_measure_does() -> None:
    error, share = scored_rows(DISTANCE, (METRIC, "delta1"), np.array([[0.1, 0.1], [3.0, 0.9]]))
    assert (share.row.low, share.row.high) == (0.0, 100.0)
    assert 0 < error.row.low < 0.1
    assert error.row.high > 20
    (angle,) = scored_rows(DISTANCE, (ANGLE,), np.array([[10.0], [90.0]]))
    assert angle.row.high == 180


def test_areas_are_those_of_records() -> None:
    rng = np.random.default_rng(0)
    right = rng.integers(0, 20, (30, 4))
    areas = np.stack([right, right + rng.integers(0, 9, (30, 4)), right + rng.integers(0, 9, (30, 4))], 1)
    union = areas[:, 1] + areas[:, 2] - right
    assert miou_interval(areas) == explained_interval(np.stack([right, union], -1), areas[:, 2].sum(0))
    low, high = miou_interval(areas).ends
    assert low < scores_of_areas(areas.sum(0)).miou < high


def test_the_majority_class_lies_inside_its_interval() -> None:
    """majority class 6.0 [6.5, 12.6]: classes of few images were absent from most resamples."""
    whole = population(60, 300, seed=3)
    labelled = whole.labelled.astype(np.int64)
    areas = np.zeros((300, 3, 60), dtype=np.int64)
    areas[:, 2], areas[:, 1, 0], areas[:, 0, 0] = labelled, labelled.sum(1), labelled[:, 0]
    low, high = miou_interval(areas).ends
    assert low <= scores_of_areas(areas.sum(0)).miou <= high < 0.05


@pytest.mark.parametrize(("kind", "classes", "images"), [("usual", 21, 60), ("usual", 60, 300), ("poor", 60, 100)])
def test_intervals_hold_the_populations_miou(kind: str, classes: int, images: int) -> None:
    """93 % at least, less three standard errors of so many samples.

    A poor network predicts many classes that are nowhere labelled; taken to be as good as the others they moved the
    whole interval above the truth.
    """
    found = coverage(population(classes, 1500, poor=kind == "poor"), images, 80)
    assert found.given > 85
    assert found.held >= 100 * (0.93 - 3 * math.sqrt(0.93 * 0.07 / 80))


@pytest.mark.parametrize(("classes", "images"), [(21, 6), (60, 30), (150, 30), (150, 100)])
def test_of_too_few_images_for_the_classes_there_is_no_interval_and_the_row_says_why(classes: int, images: int) -> None:
    """Intervals of 150 classes were ten times as wide as the score's deviation, with the score at their lower end."""
    whole = population(classes, 400)
    labelled = whole.labelled[:images].astype(np.int64)
    inside, union = whole.areas[0, :images].transpose(1, 0, 2).astype(np.int64)
    areas = np.stack([inside, union - labelled + inside, labelled], 1)
    row = miou_row(replace(LIKE, metric="mIoU"), areas).row
    assert np.isnan([row.low, row.high]).all()
    assert row.no_interval.startswith("too few images: ")
    stored = EvalResult(**row.plain())
    assert (stored.low, stored.interval) == (None, row.no_interval)


def test_of_none_it_is_nan() -> None:
    for nothing in (np.zeros((0, 3, 2), int), np.zeros((4, 3, 2), int)):
        assert all(math.isnan(end) for end in miou_interval(nothing).ends)
        assert miou_interval(nothing).why == "nothing was scored"
