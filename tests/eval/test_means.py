"""Means over things of which images have several, with their records and intervals."""

from __future__ import annotations

import numpy as np
import pytest

from dinoskip.results import EvalResult
from dinoskip.statistics import score
from eval.means import mean_record, mean_rows

LIKE = EvalResult("", 0.0, "video", "3", "davis2017", "val", 4)


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
