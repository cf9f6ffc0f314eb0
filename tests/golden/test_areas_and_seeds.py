"""Differences of mIoU over images, and means over seeds, against recorded outputs of independent implementations."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dinoskip.results.estimates import difference, estimate
from dinoskip.results.records import areas_record
from dinoskip.results.statistics import over_seeds
from tests.helpers.golden import recorded

GOLDEN, AREAS = recorded("meaning", "areas")
_, CELLS = recorded("meaning", "cells")


def or_none(value: float) -> float | None:
    return None if math.isnan(value) else value


@pytest.mark.parametrize("case", AREAS, ids=lambda case: case["name"])
def test_differences_of_areas_are_students_of_the_jackknife(case: dict) -> None:
    """This holds of 12 images or fewer, too: all signs gave every image the share of a class that one image has."""
    with np.load(GOLDEN / case["file"], allow_pickle=False) as stored:
        sides = [stored[name] for name in ("first", "second")]
        parts = stored["parts"]
    if case["layout"].startswith("right"):
        sides = [areas_record(side) for side in sides]
    first, second = map(estimate, sides)
    expected, apart, found = case["expected"], first - second, difference([first], [second])
    assert (first.value, second.value) == pytest.approx((expected["miou_first"], expected["miou_second"]), abs=1e-9)
    assert apart.standard_error == pytest.approx(expected["standard_error"], abs=1e-9)
    assert apart.lone.sum() == expected["lone_classes"]
    np.testing.assert_allclose(apart.parts.sum(1), parts.sum(1), rtol=0, atol=1e-11)
    assert found.value == pytest.approx(expected["difference"], abs=1e-9)
    assert found.p == pytest.approx(expected["p"], rel=1e-9)
    assert [or_none(end) for end in (found.low, found.high)] == [
        end if end is None else pytest.approx(end, abs=1e-9) for end in (expected["low"], expected["high"])
    ]


@pytest.mark.parametrize("case", CELLS, ids=lambda case: case["name"])
def test_means_over_seeds(case: dict) -> None:
    with np.load(GOLDEN / case["file"], allow_pickle=False) as stored:
        found = over_seeds(stored["values"].tolist())
    for name, value in case["expected"].items():
        got = or_none(float(getattr(found, {"number": "n"}.get(name, name))))
        assert got == (value if value is None else pytest.approx(value, abs=1e-9)), name
