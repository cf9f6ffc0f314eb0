"""Statistics against closed forms, brute force and other libraries."""

from __future__ import annotations

import itertools
import math
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import dinoskip.statistics as statistics
from dinoskip.statistics import (
    cross_fitted_best,
    holm,
    mcnemar,
    mean_interval,
    paired_difference,
    paired_differences,
    resample_counts,
    score,
    wilson,
)


@given(n=st.integers(1, 5000), part=st.floats(0, 1))
@settings(max_examples=60, deadline=None)
def test_wilson_is_scipys(n: int, part: float) -> None:
    hits = round(part * n)
    interval = stats.binomtest(hits, n).proportion_ci(0.95, "wilson")
    assert wilson(hits, n) == pytest.approx((interval.low, interval.high), abs=1e-12)


def test_wilson_at_the_ends() -> None:
    assert wilson(0, 60) == pytest.approx((0, 0.0602), abs=1e-4)
    assert wilson(60, 60) == pytest.approx((1 - 0.0602, 1), abs=1e-4)
    assert all(math.isnan(end) for end in wilson(0, 0))
    with pytest.raises(ValueError, match="3 hits of 2"):
        wilson(3, 2)


def brute_score(records: np.ndarray, counts: np.ndarray) -> float:
    """A score, image by image, in Python."""
    drawn = [records[i] for i, times in enumerate(counts) for _ in range(int(times))]
    if records.ndim == 1:
        return sum(int(x) for x in drawn) / len(drawn)
    ratios = []
    for k in range(records.shape[1]):
        top, bottom = (sum(int(x[k, part]) for x in drawn) for part in (0, 1))
        if bottom:
            ratios.append(top / bottom)
    return sum(ratios) / len(ratios) if ratios else math.nan


def made_up(seed: int, n: int, classes: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if not classes:
        return (rng.random(n) < 0.4).astype(np.uint8)
    union = rng.integers(0, 50, (n, classes)) * (rng.random((n, classes)) < 0.6)
    return np.stack([(union * rng.random((n, classes))).astype(np.int64), union], -1)


@pytest.mark.parametrize("classes", [0, 3])
def test_a_paired_difference_is_that_of_a_plain_loop(classes: int) -> None:
    a, b = made_up(0, 9, classes), made_up(1, 9, classes)
    found = paired_difference(a, b, resamples=200, seed=5)
    counts = np.concatenate(list(resample_counts(9, 200, 5)))
    differences = np.array([brute_score(a, row) - brute_score(b, row) for row in counts])
    ones = np.ones(9)
    assert found.value == pytest.approx(brute_score(a, ones) - brute_score(b, ones))
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(differences, (0.025, 0.975))))
    below, above = (np.array(differences) <= 0).sum(), (np.array(differences) >= 0).sum()
    assert found.p == pytest.approx(min(1, 2 * (1 + min(below, above)) / 201))
    assert found.n == 9


def test_pairing_finds_what_unpaired_intervals_hide() -> None:
    rng = np.random.default_rng(0)
    b = (rng.random(60) < 0.5).astype(np.uint8)
    a = b.copy()
    a[np.flatnonzero(b == 0)[:8]] = 1  # right wherever b is, and in eight images more
    found = paired_difference(a, b)
    assert found.value == pytest.approx(8 / 60)
    assert 0.03 < found.low < found.value < found.high < 0.25
    assert found.p < 0.01
    intervals = [wilson(int(one.sum()), 60) for one in (a, b)]
    assert intervals[0][0] < intervals[1][1], "the two intervals overlap"
    same = paired_difference(a, a)
    assert (same.value, same.low, same.high, same.p) == (0, 0, 0, 1)


def test_the_interval_is_the_normal_one_for_many_images() -> None:
    a, b = made_up(2, 4000, 0), made_up(3, 4000, 0)
    difference = a.astype(float) - b
    half = 1.96 * difference.std() / math.sqrt(4000)
    found = paired_difference(a, b, resamples=4000)
    assert found.low == pytest.approx(difference.mean() - half, abs=1e-3)
    assert found.high == pytest.approx(difference.mean() + half, abs=1e-3)


def test_seeds_are_a_second_level() -> None:
    """With many images what is left is the spread of seeds: all their resamples can be listed."""
    shares = ([0.3, 0.5, 0.7], [0.4, 0.45])
    sides = [[(np.arange(5000) % 1000 < 1000 * share).astype(np.uint8) for share in side] for side in shares]
    found = paired_difference(*sides)
    means = [[np.mean(drawn) for drawn in itertools.product(side, repeat=len(side))] for side in shares]
    exact = [x - y for x in means[0] for y in means[1]]
    assert found.value == pytest.approx(np.mean(shares[0]) - np.mean(shares[1]))
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(exact, (0.025, 0.975))), abs=0.03)
    alone = paired_difference(sides[0][1], sides[1][0])
    assert alone.high - alone.low < (found.high - found.low) / 4


def test_records_that_cannot_be_paired_are_refused() -> None:
    for a, b in ((np.ones(3), np.ones(4)), (np.ones((3, 2, 2)), np.ones((3, 4, 2))), ([], [np.ones(3)])):
        with pytest.raises(ValueError, match="cannot be paired"):
            paired_difference(a, b)
    assert math.isnan(paired_difference(np.zeros(0, np.uint8), np.zeros(0, np.uint8)).value)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=80))
@settings(max_examples=60, deadline=None)
def test_mcnemar_is_the_exact_binomial_test(pairs: list[tuple[bool, bool]]) -> None:
    a, b = (np.array(one) for one in zip(*pairs, strict=True))
    found = mcnemar(a, b)
    assert (found.only_a, found.only_b) == (int((a > b).sum()), int((b > a).sum()))
    discordant = found.only_a + found.only_b
    wanted = stats.binomtest(found.only_a, discordant).pvalue if discordant else 1.0
    assert found.p == pytest.approx(wanted, abs=1e-12)
    with pytest.raises(ValueError, match="cannot be paired"):
        mcnemar(a, [*b, True])


def test_holm_on_a_worked_example() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.floats(0.001, 0.5))
@settings(max_examples=60, deadline=None)
def test_holm_rejects_step_by_step(p_values: list[float], level: float) -> None:
    rejected: set[int] = set()
    for rank, i in enumerate(np.argsort(p_values, kind="stable")):
        if p_values[i] * (len(p_values) - rank) > level:
            break
        rejected.add(int(i))
    assert {i for i, p in enumerate(holm(p_values)) if p <= level} == rejected


@pytest.mark.parametrize("classes", [0, 3])
def test_cross_fitting_scores_each_image_by_a_block_chosen_without_it(classes: int) -> None:
    records = {str(block): made_up(block, 11, classes) for block in range(1, 6)}
    found = cross_fitted_best(records, seed=3)
    mine = [(found.records == each).reshape(11, -1).all(1) for each in (records[b] for b in found.chosen)]
    assert (mine[0] | mine[1]).all()
    halves = [
        half
        for half in (np.array(c) for c in itertools.combinations(range(11), 5))
        if mine[0][half].all() and np.delete(mine[1], half).all()
    ]

    def best(images: np.ndarray) -> str:
        counts = np.bincount(images, minlength=11)
        return max(records, key=lambda block: brute_score(records[block], counts))

    other = [np.setdiff1d(np.arange(11), half) for half in halves]
    assert any(found.chosen == (best(rest), best(half)) for half, rest in zip(halves, other, strict=True))
    assert found.value == pytest.approx(brute_score(found.records, np.ones(11)))
    assert found.oracle_block == best(np.arange(11))
    assert found.oracle == pytest.approx(brute_score(records[found.oracle_block], np.ones(11)))
    assert found.optimism == pytest.approx(found.oracle - found.value)


def test_cross_fitting_removes_the_optimism_of_choosing() -> None:
    """Twelve blocks that are equally good: the best on the reported images looks better than it is, the chosen not."""
    rng = np.random.default_rng(0)
    fits = [
        cross_fitted_best({str(b): (rng.random(60) < 0.5).astype(np.uint8) for b in range(12)}, seed=s)
        for s in range(200)
    ]
    assert np.mean([fit.value for fit in fits]) == pytest.approx(0.5, abs=0.015)
    assert np.mean([fit.optimism for fit in fits]) > 0.06


def test_cross_fitting_needs_blocks_of_the_same_images() -> None:
    for records in ({}, {"1": np.ones(1)}, {"1": np.ones(4), "2": np.ones(5)}):
        with pytest.raises(ValueError, match="cannot be chosen"):
            cross_fitted_best(records)


def test_scores_of_nothing_are_nan() -> None:
    assert math.isnan(score(np.zeros(0, np.uint8)))
    assert math.isnan(score(np.zeros((4, 3, 2), np.int64)))


def test_pairs_are_drawn_together_and_quickly() -> None:
    hits = [made_up(block, 5000, 0) for block in range(13)]
    began = time.process_time()
    found = paired_differences([(one, hits[0]) for one in hits[1:]])
    assert time.process_time() - began < 4  # less than a second on a quiet machine
    assert found[3] == paired_difference(hits[4], hits[0])
    with pytest.raises(ValueError, match="different numbers of images"):
        paired_differences([(hits[0], hits[1]), (hits[0][:9], hits[1][:9])])
    assert paired_differences([]) == []


def test_draws_are_counts_of_whole_resamples_whatever_is_held_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    all_at_once = np.concatenate(list(resample_counts(7, 50, seed=3)))
    assert all_at_once.shape == (50, 7)
    assert (all_at_once.sum(1) == 7).all()
    assert set(np.unique(all_at_once)) <= set(range(8))
    assert not (all_at_once == np.concatenate(list(resample_counts(7, 50, seed=4)))).all()
    monkeypatch.setattr(statistics, "_DRAWS", 20)  # two resamples a part
    parts = list(resample_counts(7, 50, seed=3))
    assert len(parts) == 25
    assert (np.concatenate(parts) == all_at_once).all()


def test_every_image_is_drawn_as_often_as_another() -> None:
    counts = np.concatenate(list(resample_counts(20, 4000, seed=0)))
    np.testing.assert_allclose(counts.mean(0), 1, atol=5 / math.sqrt(4000))  # variance of a count is 1 - 1/n
    np.testing.assert_allclose(counts.var(), 1 - 1 / 20, rtol=0.05)


def test_images_own_scores_are_averaged_without_those_that_have_none() -> None:
    rng = np.random.default_rng(5)
    values = rng.random(40)
    values[[3, 7]] = np.nan
    assert score(values) == pytest.approx(np.nanmean(values), abs=1e-15)
    other = values - 0.1
    difference = paired_difference(values, other)
    assert difference.value == pytest.approx(0.1)
    assert difference.low == pytest.approx(0.1)
    assert difference.high == pytest.approx(0.1)
    draws = [np.nanmean(values[rng.integers(0, 40, 40)]) for _ in range(4000)]
    assert mean_interval(values) == pytest.approx(tuple(np.quantile(draws, (0.025, 0.975))), abs=0.015)
    assert all(math.isnan(end) for end in mean_interval([math.nan]))
    assert all(math.isnan(end) for end in mean_interval([]))


def test_of_errors_the_lowest_block_is_chosen() -> None:
    errors = {"1": np.full(10, 0.4), "2": np.full(10, 0.2), "3": np.full(10, np.nan)}
    fit = cross_fitted_best(errors, lowest=True)
    assert fit.chosen == ("2", "2")
    assert fit.oracle_block == "2"
    assert cross_fitted_best(errors).chosen == ("1", "1")
