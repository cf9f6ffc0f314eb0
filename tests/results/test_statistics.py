"""Statistics against closed forms, brute force and other libraries."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dinoskip.results.statistics import (
    clopper_pearson,
    degrees_of_freedom,
    explained_interval,
    holm,
    interval,
    jackknife,
    mcnemar,
    over_seeds,
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


@given(n=st.integers(1, 3000), part=st.floats(0, 1))
@settings(max_examples=60, deadline=None)
def test_the_interval_of_hits_is_the_exact_one(n: int, part: float) -> None:
    hits = round(part * n)
    wanted = stats.binomtest(hits, n).proportion_ci(0.95, "exact")
    assert clopper_pearson(hits, n) == pytest.approx((wanted.low, wanted.high), abs=1e-9)
    assert interval((np.arange(n) < hits).astype(np.uint8)) == clopper_pearson(hits, n)
    with pytest.raises(ValueError, match="3 hits of 2"):
        clopper_pearson(3, 2)
    assert all(math.isnan(end) for end in clopper_pearson(0, 0))


@pytest.mark.parametrize("n", [6, 12, 60, 216])
def test_the_interval_of_hits_holds_every_share(n: int) -> None:
    """Wilson's held a share of 0.03 in 83 % of samples of 6."""
    shares, hits = np.linspace(0.001, 0.999, 300), np.arange(n + 1)
    low, high = np.array([clopper_pearson(count, n) for count in range(n + 1)]).T
    chance = stats.binom.pmf(hits[:, None], n, shares)
    held = (chance * ((low[:, None] <= shares) & (shares <= high[:, None]))).sum(0)
    assert held.min() >= 0.95 - 1e-9


def held(draw: Callable[[np.random.Generator], np.ndarray], mean: float, samples: int, *, errors: bool) -> float:
    rng = np.random.default_rng(0)
    ends = [interval(draw(rng), errors=errors) for _ in range(samples)]
    return float(np.mean([low <= mean <= high for low, high in ends]))


@pytest.mark.parametrize("n", [6, 12, 60, 216])
def test_intervals_of_shares_hold_a_mean_that_few_failing_images_lower(n: int) -> None:
    """Delta1 with 8 % of images failing: 51 % of samples of 6, Student's of the sample. Here 93 %, less chance."""

    def draw(rng: np.random.Generator) -> np.ndarray:
        return np.where(rng.random(n) < 0.08, rng.beta(2, 6, n), rng.beta(30, 1.5, n))

    assert held(draw, 0.08 * 0.25 + 0.92 * 30 / 31.5, 400, errors=False) >= 0.93 - 3 * math.sqrt(0.93 * 0.07 / 400)


@pytest.mark.parametrize("n", [6, 12, 60, 216])
def test_intervals_of_errors_hold_the_mean_of_skewed_ones(n: int) -> None:
    """Lognormal, the deviation of the logs 1: Student's of the sample held it in 82 % of samples of 6."""
    wanted = 0.93 - 3 * math.sqrt(0.93 * 0.07 / 400)
    assert held(lambda rng: np.exp(rng.standard_normal(n)), math.exp(0.5), 400, errors=True) >= wanted


def test_the_interval_of_shares_is_students_with_one_unit_more_at_either_end() -> None:
    values = np.random.default_rng(5).random(40) ** 0.2
    added = np.append(values, [0, 1])
    wanted = stats.t.interval(0.95, 41, added.mean(), stats.sem(added))
    assert interval(values) == pytest.approx(wanted)
    assert interval(np.append(values, [math.nan])) == pytest.approx(wanted)
    pairs = np.stack([np.rint(1e6 * values), np.full(40, 1e6)], -1).astype(np.int64)[:, None]
    assert interval(pairs) == pytest.approx(wanted, abs=1e-6)
    assert interval(np.repeat(pairs, 3, 1)) == pytest.approx(wanted, abs=1e-6), "as recall at several overlaps"
    assert interval(np.ones(6))[1] == 1.0
    with pytest.raises(ValueError, match="shares from"):
        interval(100 * values)


def test_videos_that_have_most_of_the_objects_leave_few_degrees_of_freedom() -> None:
    """Kish's number of units: of 8 videos one has as many objects as the others."""
    counts = np.array([1, 1, 1, 1, 1, 1, 1, 7])
    found = jackknife(np.stack([counts // 2 + 1, counts], -1)[:, None])
    assert degrees_of_freedom(found.lone, found.sizes, 8) == pytest.approx(14**2 / 56 - 1)
    assert degrees_of_freedom(np.zeros(2, bool), np.array([3.5, 4.5]), 8) == 7, "classes of a mIoU"
    assert degrees_of_freedom(np.zeros(1, bool), np.array([1.0]), 8) == 1
    even, uneven = (np.stack([counts * 0.5, counts], -1)[:, None] for counts in (np.full(8, 2), counts))
    even[0, 0, 0], uneven[0, 0, 0] = 0, 0
    assert explained_interval(uneven).why == ""


def test_the_interval_of_errors_is_students_on_the_log_scale_with_one_unit_more_upward() -> None:
    values = np.array([0.2, 0.4, 0.3, 0.9])
    more = np.append(values, values.mean() + 2.5 * (0.9 - values.mean()))
    low = values.mean() * math.exp(-stats.t.ppf(0.975, 3) * stats.sem(values) / values.mean())
    high = more.mean() * math.exp(stats.t.ppf(0.975, 4) * stats.sem(more) / more.mean())
    assert interval(values, errors=True) == pytest.approx((low, high))
    assert interval(np.append(values, math.nan), errors=True) == pytest.approx((low, high))
    assert interval(1000 * values, errors=True) == pytest.approx((1000 * low, 1000 * high))
    for nothing in (values[:1], np.full(4, 0.3), np.full(4, math.nan)):
        found = explained_interval(nothing, errors=True)
        assert math.isnan(found.low)
        assert found.why
    with pytest.raises(ValueError, match="an error of"):
        interval(values - 1, errors=True)


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


def test_nothing_and_one_image_have_no_interval_and_it_says_so() -> None:
    for none in (np.zeros(0), np.ones(1), np.array([math.nan]), np.zeros((4, 3, 2), np.int64), np.ones((1, 3, 2), int)):
        found = explained_interval(none)
        assert all(math.isnan(end) for end in found.ends)
        assert found.why in {"nothing was scored", "one image"}


def test_classes_in_single_images_leave_a_miou_without_an_interval() -> None:
    """Up to a tenth of the classes may lie in a single image."""
    rng = np.random.default_rng(0)
    union = rng.integers(10, 50, (30, 20))
    inside = (union * rng.random((30, 20))).astype(int)
    for lone, given_one in ((2, True), (3, False)):
        alone = union * (np.arange(30)[:, None] == 0) + union * (np.arange(20) >= lone) * (np.arange(30)[:, None] > 0)
        found = explained_interval(np.stack([np.minimum(inside, alone), alone], -1))
        assert (found.low < found.high) is given_one
        assert found.why == ("" if given_one else "too few images: 3 of 20 classes are in a single one")


def test_classes_that_are_nowhere_labelled_leave_a_miou_without_an_interval() -> None:
    """There is none where such classes may move the score by more than images do; images that vary more have one."""
    rng = np.random.default_rng(0)
    union = rng.integers(10, 50, (30, 10))
    for spread, given_one in ((0.02, False), (1.0, True)):
        inside = (union * np.clip(0.5 + spread * rng.uniform(-0.5, 0.5, (30, 1)), 0, 1)).astype(int)
        inside[:, 9] = 0
        found = explained_interval(np.stack([inside, union], -1), np.arange(10) < 9)
        assert (found.low < found.high) is given_one
        assert found.why == ("" if given_one else "too few images: 1 of 10 classes are predicted and nowhere labelled")


@given(st.integers(2, 30), st.integers(1, 40), st.integers(0, 2**31))
@settings(max_examples=60, deadline=None)
def test_the_interval_of_a_miou_holds_it_and_lies_in_0_to_1(images: int, classes: int, seed: int) -> None:
    """Classes may be in single images, nowhere labelled or never right, as with the majority class."""
    rng = np.random.default_rng(seed)
    union = rng.integers(0, 50, (images, classes)) * (rng.random((images, classes)) < 0.1)
    union[0, 0] = 5
    right = (union * rng.random((images, classes)) * (rng.random(classes) < 0.5)).astype(np.int64)
    records = np.stack([right, union], -1)
    found = explained_interval(records, union.sum(0) * (rng.random(classes) < 0.8))
    if found.why:
        assert math.isnan(found.low)
        assert math.isnan(found.high)
        return
    assert 0 <= found.low <= score(records) + 1e-12
    assert score(records) - 1e-12 <= found.high <= 1
    assert found.low < found.high


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


def test_a_miou_next_to_one_has_the_logit_of_the_last_that_has_one() -> None:
    """Nearer than 1e-4 to 0 or 1 the centre is moved to there."""
    rng = np.random.default_rng(0)
    union = rng.integers(900_000, 1_100_000, (30, 3))
    records = np.stack([union - rng.integers(0, 50, (30, 3)), union], -1)
    found = jackknife(records)
    error = math.sqrt(variance(found.parts, found.lone, found.sizes))
    centre, t = 1 - 1e-4, stats.t.ppf(0.975, 29)
    half = t * math.hypot(error, found.bias / 2) / (centre * (1 - centre))
    low, high = interval(records)
    assert 1 - found.value < 1e-4
    assert low == pytest.approx(1 / (1 + math.exp(-(math.log(centre / (1 - centre)) - half))), abs=1e-9)
    assert high == pytest.approx(found.value, abs=1e-12), "it holds the score"
