"""Rows of scores that images have by themselves."""

from __future__ import annotations

import numpy as np
import pytest

from dinoskip.errors import DataError
from dinoskip.results import EvalResult
from dinoskip.statistics import interval
from eval.image_scores import lowest_trials, scored_rows

LIKE = EvalResult("", 0.0, "depth", "2", "nyu", "test", 0)


def test_errors_keep_their_unit_and_shares_become_percent() -> None:
    scores = np.array([[0.5, 0.9], [0.7, 0.6], [np.nan, np.nan]])
    error, share = scored_rows(LIKE, ("RMSE", "delta1"), scores)
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
    for scale, column, one in zip((1, 100), values.T, scored_rows(LIKE, ("RMSE", "delta1"), values), strict=True):
        assert (one.row.low, one.row.high) == pytest.approx(interval(scale * column))


def test_the_trial_of_the_lowest_error_is_taken_and_diverged_ones_are_not() -> None:
    errors = np.array([[[np.nan, np.nan], [0.5, 0.7], [0.6, np.nan]], [[0.1, 0.1], [0.1, 0.1], [0.0, 0.3]]])
    assert lowest_trials(errors, ["1", "2"], "depth") == [1, 0]
    with pytest.raises(DataError, match="depth: block 7: no head has a score"):
        lowest_trials(np.full((1, 2, 3), np.nan), ["7"], "depth")
