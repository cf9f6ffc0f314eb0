"""Statistics against closed forms, brute force and other libraries."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import dinoskip.statistics as statistics
from dinoskip.statistics import (
    holm,
    interval,
    jackknife,
    mcnemar,
    over_seeds,
    resample_counts,
    score,
    variance,
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


def test_scores_of_nothing_are_nan() -> None:
    assert math.isnan(score(np.zeros(0, np.uint8)))
    assert math.isnan(score(np.zeros((4, 3, 2), np.int64)))


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


@pytest.mark.parametrize("classes", [0, 3])
def test_the_jackknife_is_that_of_a_plain_loop(classes: int) -> None:
    records = made_up(0, 9, classes)
    found = jackknife(records)
    without = np.array([score(np.delete(records, one, axis=0)) for one in range(9)])
    assert found.value == pytest.approx(score(records))
    assert found.parts.sum(1) == pytest.approx(8 * (score(records) - without))
    assert found.bias == pytest.approx(8 * (without.mean() - score(records)))
    wanted = 8 / 9 * np.square(without - without.mean()).sum()
    assert variance(found.parts, found.lone, found.sizes) == pytest.approx(wanted)


def test_without_its_only_unit_a_class_keeps_its_iou() -> None:
    union = np.array([[4, 0], [6, 0], [2, 8]])
    found = jackknife(np.stack([union // 2, union], -1))
    assert found.lone.tolist() == [False, True]
    assert found.parts[:, 1].tolist() == [0, 0, 0]
    assert found.sizes == pytest.approx([144 / 56, 1])


def test_a_class_of_one_unit_varies_as_one_unit_does_in_the_others() -> None:
    rng = np.random.default_rng(3)
    union = np.concatenate([np.full((20, 2), 10), np.zeros((20, 1), int)], 1)  # two classes of 20 equal units
    union[4, 2] = 7
    found = jackknife(np.stack([rng.integers(0, union + 1), union], -1))
    assert found.lone.tolist() == [False, False, True]
    assert found.sizes == pytest.approx([20, 20, 1])
    sums = found.parts.sum(1)
    of_classes = found.parts[:, :2].var(0, ddof=1) / 20
    wanted = sums.var(ddof=1) / 20 + 20 * of_classes.mean()
    assert variance(found.parts, found.lone, found.sizes) == pytest.approx(wanted)
    assert variance(100 * found.parts, found.lone, found.sizes) == pytest.approx(1e4 * sums.var(ddof=1) / 20 + 0.25 / 9)


@pytest.mark.parametrize("unlabelled", [False, True])
def test_the_interval_of_a_miou_is_that_of_its_definition(unlabelled: bool) -> None:
    """Student's on the logit scale, less the bias, with half of it in the error; by either bias."""
    rng = np.random.default_rng(8)
    union = rng.integers(1, 50, (12, 4)) ** 2  # of few images ratios are biased
    right = (union * rng.random((12, 4)) ** 2).astype(int)
    right[:, 3] = 0  # predicted, nowhere right
    records = np.stack([right, union], -1)
    labelled = np.array([9, 9, 9, 0 if unlabelled else 9])
    without = np.array([score(np.delete(records, one, axis=0)) for one in range(12)])
    value, error = score(records), math.sqrt(11 / 12 * np.square(without - without.mean()).sum())
    jackknifed = 11 * (without.mean() - value)
    biases = jackknifed, min(jackknifed, -score(records[:, :3]) / 4 if unlabelled else 0)
    assert biases[1] < biases[0]
    ends = [value]
    for bias in biases:
        centre, t = value - bias, stats.t.ppf(0.975, 11)
        half = t * math.hypot(error, bias / 2) / (centre * (1 - centre))
        ends += [1 / (1 + math.exp(-(math.log(centre / (1 - centre)) + sign * half))) for sign in (-1, 1)]
    assert abs(biases[0]) > 0.01 * error
    assert interval(records, labelled) == pytest.approx((min(ends), max(ends)))


def test_an_interval_of_scores_is_students_and_of_hits_wilsons() -> None:
    rng = np.random.default_rng(5)
    values = rng.random(40)
    wanted = stats.t.interval(0.95, 39, values.mean(), stats.sem(values))
    assert interval(values) == pytest.approx(wanted)
    holes = np.append(values, [math.nan, math.nan])
    assert score(holes) == pytest.approx(values.mean())
    assert interval(holes) == pytest.approx(wanted, abs=0.005)
    assert interval((values < 0.3).astype(np.uint8)) == wilson(int((values < 0.3).sum()), 40)
    for none in (np.zeros(0), np.ones(1), np.array([math.nan]), np.zeros((4, 3, 2), np.int64)):
        assert all(math.isnan(end) for end in interval(none))


@given(st.integers(2, 30), st.integers(1, 40), st.integers(0, 2**31))
@settings(max_examples=60, deadline=None)
def test_the_interval_of_a_miou_holds_it_and_lies_in_0_to_1(images: int, classes: int, seed: int) -> None:
    """Also where classes are in single images, nowhere labelled or never right, as with the majority class."""
    rng = np.random.default_rng(seed)
    union = rng.integers(0, 50, (images, classes)) * (rng.random((images, classes)) < 0.1)
    union[0, 0] = 5
    right = (union * rng.random((images, classes)) * (rng.random(classes) < 0.5)).astype(np.int64)
    records = np.stack([right, union], -1)
    low, high = interval(records, union.sum(0) * (rng.random(classes) < 0.8))
    assert 0 <= low <= score(records) <= high <= 1
    assert low < high


def test_holm_leaves_out_what_was_not_tested() -> None:
    adjusted = holm([0.02, math.nan, 0.03])
    assert [adjusted[0], adjusted[2]] == pytest.approx([0.04, 0.04])
    assert math.isnan(adjusted[1])


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=9))
@settings(max_examples=60, deadline=None)
def test_a_summary_over_seeds_is_students_interval_of_their_mean(values: list[float]) -> None:
    found = over_seeds(values)
    assert (found.mean, found.n) == (pytest.approx(np.mean(values)), len(values))
    assert found.deviation == pytest.approx(np.std(values, ddof=1), abs=1e-9)
    if np.ptp(values) > 1e-6:
        wanted = stats.t.interval(0.95, len(values) - 1, np.mean(values), stats.sem(values))
        assert (found.low, found.high) == pytest.approx(wanted, abs=1e-9)


def test_seeds_that_are_one_or_equal_or_none() -> None:
    one = over_seeds([71.44])
    assert (one.mean, one.n) == (71.44, 1)
    assert all(math.isnan(none) for none in (one.deviation, one.low, one.high))
    equal = over_seeds([0.1, 0.1, 0.1])
    assert (equal.mean, equal.deviation, equal.n, equal.low, equal.high) == (0.1, 0.0, 3, 0.1, 0.1)
    for nothing in ([], [1.0, math.nan], [math.inf]):
        with pytest.raises(ValueError, match="no mean"):
            over_seeds(nothing)
