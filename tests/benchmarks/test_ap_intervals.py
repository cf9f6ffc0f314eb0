"""A small form of the simulation: intervals hold the AP of all images, and too few images have none."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks import ap_intervals
from benchmarks.ap_intervals import coverage, population, resample_counts, table_of_coverage


@pytest.mark.parametrize(("classes", "equal_scores"), [(1, True), (5, False)])
def test_intervals_hold_the_ap_of_all_images(classes: int, equal_scores: bool) -> None:
    """95 % of 60 samples are 57; fewer than 51 have a chance of 0.6 %. Equal networks differ in 5 %, 3 of 60."""
    whole = [one.at(0, 1) for one in population(classes, 3000, equal_scores=equal_scores)]
    found = coverage(whole, 40, 60, 8)
    assert found.now > 100 * 50 / 60
    assert found.given == 100
    assert found.differ < 100 * 10 / 60
    assert np.isfinite(found.before)


def test_few_images_of_many_classes_have_none() -> None:
    found = coverage([one.at(0, 1) for one in population(40, 2000)], 6, 20, 2)
    assert found.given < 30
    assert np.isfinite(found.before)


def test_the_table_has_a_line_for_each_score_and_number_of_images() -> None:
    assert len([line for line in table_of_coverage(4, (6,), ()) if line.startswith("| 1, equal scores")]) == 2


def test_draws_are_counts_of_whole_resamples_whatever_is_held_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    all_at_once = np.concatenate(list(resample_counts(7, 50, seed=3)))
    assert all_at_once.shape == (50, 7)
    assert (all_at_once.sum(1) == 7).all()
    assert set(np.unique(all_at_once)) <= set(range(8))
    assert not (all_at_once == np.concatenate(list(resample_counts(7, 50, seed=4)))).all()
    monkeypatch.setattr(ap_intervals, "_DRAWS", 20)  # two resamples a part
    parts = list(resample_counts(7, 50, seed=3))
    assert len(parts) == 25
    assert (np.concatenate(parts) == all_at_once).all()


def test_every_image_is_drawn_as_often_as_another() -> None:
    counts = np.concatenate(list(resample_counts(20, 4000, seed=0)))
    np.testing.assert_allclose(counts.mean(0), 1, atol=5 / math.sqrt(4000))  # variance of a count is 1 - 1/n
    np.testing.assert_allclose(counts.var(), 1 - 1 / 20, rtol=0.05)
