"""Differences over units and seeds, choices of a block, and joint verdicts: against closed forms and brute force."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dinoskip.decisions.cross_fitting import LEAST_TO_CHOOSE, cross_fitted_best
from dinoskip.results.estimates import (
    ONE_EACH,
    OVER_SEEDS,
    Difference,
    Estimate,
    Judgement,
    decided,
    difference,
    estimate,
    gain_of,
    judged,
    known,
    least_gap,
)
from dinoskip.results.statistics import mcnemar, score


def hits(seed: int, n: int, rate: float = 0.5) -> np.ndarray:
    return (np.random.default_rng(seed).random(n) < rate).astype(np.uint8)


def test_many_scores_are_compared_by_the_paired_t_test() -> None:
    a, b = np.random.default_rng(0).random((2, 40))
    found = difference([estimate(a)], [estimate(b)])
    wanted = stats.ttest_rel(a, b)
    ends = wanted.confidence_interval()
    assert (found.value, found.p) == (pytest.approx((a - b).mean()), pytest.approx(wanted.pvalue))
    assert (found.low, found.high) == (pytest.approx(ends.low), pytest.approx(ends.high))
    assert found.n == 40
    gain = difference([estimate(a) - estimate(b)])
    assert (gain.value, gain.low, gain.high, gain.p, gain.kind) == (found.value, found.low, found.high, found.p, "")
    assert found.kind == "one training each"


def test_few_scores_are_compared_by_all_signs() -> None:
    a, b = np.random.default_rng(1).random((2, 8))
    wanted = stats.permutation_test((a - b,), np.mean, permutation_type="samples", n_resamples=math.inf).pvalue
    assert difference([estimate(a)], [estimate(b)]).p == pytest.approx(wanted)


@pytest.mark.parametrize("units", [1, 2, 5])
def test_fewer_than_six_units_decide_nothing(units: int) -> None:
    """One video, 50.1 against 50.0, was called better, p < 0.001."""
    a = 0.501 + 0.0001 * np.arange(units)
    found = difference([estimate(a)], [estimate(a - 0.001 - 0.0001 * np.arange(units))])
    assert math.isnan(found.p)
    assert units > 1 or math.isnan(found.low)
    assert found.why == f"{units} {'image is' if units == 1 else 'images are'} too few (below 6)"
    assert decided([Judgement(found)])[0][0] == 0


@pytest.mark.parametrize(("units", "decides"), [(1, False), (5, False), (6, True), (0, True)])
def test_nor_do_fewer_whose_records_are_not_there(units: int, decides: bool) -> None:
    """0: of how many units is not known, as of published numbers."""
    for seeds in (1, 3):
        near, far = ([known(value + 0.001 * seed, 0.001, units) for seed in range(seeds)] for value in (0.5, 0.9))
        assert (difference(far, near).p < 0.05) is decides
    (one,) = near[:1]
    assert math.isnan(difference([one - one], []).p) is not decides


@given(st.integers(2, 60), st.integers(0, 2**31))
@settings(max_examples=60, deadline=None)
def test_an_interval_of_hits_has_a_width_and_holds_the_difference(n: int, seed: int) -> None:
    a = hits(seed, n)
    for b in (a, hits(seed + 1, n), 1 - a):
        found = difference([estimate(a)], [estimate(b)])
        assert found.low < found.high
        assert found.low <= found.value <= found.high
        if n >= 6:
            assert found.p == pytest.approx(mcnemar(a, b).p)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=5), st.lists(st.floats(0, 1), min_size=2, max_size=5))
@settings(max_examples=60, deadline=None)
def test_over_seeds_alone_it_is_welchs_with_no_more_degrees_of_freedom(a: list[float], b: list[float]) -> None:
    if min(np.ptp(a), np.ptp(b)) < 1e-6:
        return
    found = difference([known(value) for value in a], [known(value) for value in b])
    welch = stats.ttest_ind(a, b, equal_var=False)
    assert found.p >= welch.pvalue - 1e-9
    least = min(len(a), len(b)) - 1
    t, degrees = abs(welch.statistic), least + (welch.df - least) / 3
    assert found.p == pytest.approx(2 * stats.t.sf(t, degrees), abs=1e-9)
    assert found.seeds
    assert found.n == 0


def test_two_seeds_of_equal_spread_need_a_very_large_difference() -> None:
    near, far = ([known(value + shift) for value in (0.50, 0.51)] for shift in (0.03, 0.5))
    other = [known(value) for value in (0.50, 0.51)]
    assert difference(near, other).p > 0.05, "4 pooled deviations apart: was called better"
    assert difference(far, other).p < 0.05


@pytest.mark.parametrize("seeds", [(3, 3), (2, 5)])
def test_over_seeds_and_units_it_is_its_definition(seeds: tuple[int, int]) -> None:
    """The seeds' variance and that over units, less what seeds vary from unit to unit, which both hold."""
    rng = np.random.default_rng(6)
    sides = [rng.random((1, 30)) + 0.7 * rng.random((count, 1)) + rng.random((count, 30)) for count in seeds]
    found = difference(*([estimate(one) for one in side] for side in sides))
    of_seeds = [side.mean(1).var(ddof=1) / len(side) for side in sides]
    of_units = (sides[0].mean(0) - sides[1].mean(0)).var(ddof=1) / 30
    together = 0.0
    for side in sides:
        apart = side - side.mean(0) - side.mean(1, keepdims=True) + side.mean()
        together += np.square(apart).sum() / ((len(side) - 1) * 29) / (30 * len(side))
    assert sum(of_seeds) + of_units - together > max(sum(of_seeds), of_units)
    error = math.sqrt(sum(of_seeds) + of_units - together)
    welch = sum(of_seeds) ** 2 / sum(one**2 / (len(side) - 1) for one, side in zip(of_seeds, sides, strict=True))
    least = min(seeds) - 1
    degrees = least + (welch - least) / 3
    assert found.p == pytest.approx(2 * stats.t.sf(abs(found.value) / error, degrees))
    assert found.high - found.low == pytest.approx(2 * error * stats.t.ppf(0.975, degrees))


def test_few_units_that_networks_differ_in_decide_no_more_with_many_seeds() -> None:
    """Six units, ten seeds that hardly vary: t has five degrees of freedom, not twelve."""
    rng = np.random.default_rng(5)
    of_units = 0.1 * rng.standard_normal((2, 6))
    sides = [[estimate(0.5 + own + 1e-4 * rng.standard_normal(6)) for _ in range(10)] for own in of_units]
    found, wanted = difference(*sides), stats.ttest_rel(*of_units)
    assert found.p == pytest.approx(wanted.pvalue, rel=0.02)
    assert found.high - found.low == pytest.approx(np.diff(wanted.confidence_interval())[0], rel=0.01)


def test_one_seed_against_several_is_undecided() -> None:
    records = [estimate(hits(seed, 50)) for seed in range(3)]
    assert math.isnan(difference(records[:1], records[1:]).p)
    found = difference([known(0.5)], [known(0.1), known(0.2)])
    assert (math.isnan(found.p), found.why) == (True, "one seed on one side")
    assert difference([known(0.5)], [known(0.1)]).why == "nothing is known of the error"


def test_units_and_seeds_are_both_in_the_variance() -> None:
    """Many units leave the spread of seeds, equal seeds that of units."""
    rng = np.random.default_rng(0)
    base = rng.random(400)
    alike = [estimate(base + 0.1 * rng.standard_normal(400)) for _ in range(3)]
    other = [estimate(base + 0.1 * rng.standard_normal(400)) for _ in range(3)]
    found = difference(alike, other)
    single = difference(alike[:1], other[:1])
    assert found.high - found.low < 3 * (single.high - single.low)
    wide = [
        Estimate(one.value + shift, one.parts, one.lone, one.sizes)
        for one, shift in zip(other, (0, 0.3, 0.6), strict=True)
    ]
    assert difference(alike, wide).high - difference(alike, wide).low > 0.5
    shifted = [Estimate(one.value + 0.2, one.parts, one.lone, one.sizes) for one in other]
    assert difference(alike, shifted).p < 0.01


def test_seeds_of_an_evaluations_fit_widen_the_interval() -> None:
    several = estimate([hits(0, 5000), hits(1, 5000, 0.6), hits(2, 5000, 0.7)])
    assert several.value == pytest.approx(0.6, abs=0.02)
    assert several.fits == pytest.approx(np.var([0.5, 0.6, 0.7], ddof=1) / 3, rel=0.2)
    with pytest.raises(ValueError, match="cannot be paired"):
        estimate([hits(0, 5), hits(0, 6)])


def test_a_verdict_needs_the_difference_and_the_gain_of_the_higher() -> None:
    """Better under DINO, +5.1, where the gap before training was +5.0."""
    rng = np.random.default_rng(3)
    base = rng.random(200)

    def of(shift: float) -> list[Estimate]:
        return [estimate(base + shift + 0.02 * rng.standard_normal(200)) for _ in range(4)]

    ours, theirs, ours_before, theirs_before = of(0.25), of(0.2), of(0.25), of(0.1)
    assert decided([judged(ours, theirs)])[0][0] == 1
    assert decided([judged(ours, theirs, ours_before, theirs_before)])[0][0] == 0
    assert decided([judged(ours, theirs, of(0.1), theirs_before)])[0][0] == 1
    assert decided([judged(theirs, ours, theirs_before, of(0.1))])[0][0] == -1
    assert decided([judged(ours, theirs, of(0.9), theirs_before)])[0][0] == 0, "below its start"
    assert gain_of(ours, []) is None


def test_verdicts_are_corrected_for_their_number() -> None:
    one = Judgement(Difference(0.1, 0.01, 0.2, 0.03, 50))
    assert [sign for sign, _ in decided([one])] == [1]
    assert [sign for sign, _ in decided([one, one])] == [0, 0]


def best(records: dict[str, np.ndarray], units: np.ndarray) -> str:
    return max(records, key=lambda block: score(records[block][units]))


@pytest.mark.parametrize("classes", [0, 3])
def test_cross_fitting_is_that_of_a_plain_loop(classes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(4)

    def made() -> np.ndarray:
        if not classes:
            return (rng.random(40) < 0.5).astype(np.uint8)
        union = rng.integers(1, 50, (40, classes))
        return np.stack([(union * rng.random((40, classes))).astype(np.int64), union], -1)

    records = {str(block): made() for block in range(1, 6)}
    found = cross_fitted_best(records, seed=3)
    draws = []

    class Recorded:
        def __init__(self, *about: object) -> None:
            self.rng = np.random.default_rng(0)

        def permutation(self, n: int) -> np.ndarray:
            draws.append(self.rng.permutation(n))
            return draws[-1]

    monkeypatch.setattr("dinoskip.decisions.cross_fitting.numpy_rng", Recorded)
    found = cross_fitted_best(records)
    values, chosen = [], []
    for order in draws:
        first, second = order[:20], order[20:]
        blocks = best(records, second), best(records, first)
        both = np.concatenate([records[blocks[0]][first], records[blocks[1]][second]])
        values.append(score(both))
        chosen += blocks
    assert len(values) == 50
    each = [score(own) for own in records.values()]
    assert found.estimate.value == pytest.approx(np.clip(np.mean(values), min(each), max(each)))
    assert found.blocks == pytest.approx({block: chosen.count(block) / 100 for block in set(chosen)})
    assert list(found.blocks.values()) == sorted(found.blocks.values(), reverse=True)
    assert found.oracle_block == best(records, np.arange(40))
    assert found.optimism == pytest.approx(found.oracle - found.estimate.value)


def test_a_printed_score_is_never_below_every_block() -> None:
    """12 videos, one half-split: 47.3 where all twelve blocks score 48.0 to 53.5."""
    for seed in range(12):
        rng = np.random.default_rng(seed)
        blocks = {str(block): rng.random(LEAST_TO_CHOOSE) for block in range(12)}
        each = [score(own) for own in blocks.values()]
        assert min(each) - 1e-12 <= cross_fitted_best(blocks).estimate.value <= max(each) + 1e-12


def test_equal_networks_whose_block_is_chosen_are_rarely_called_different() -> None:
    """5 % at most: the error holds the chance of the choice."""
    rejected = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        shared = rng.random(60) < 0.5
        sides = [
            {str(b): np.where(rng.random(60) < 0.6, shared, rng.random(60) < 0.5).astype(np.uint8) for b in range(6)}
            for _ in range(2)
        ]
        one, two = (cross_fitted_best(side).estimate for side in sides)
        rejected.append(difference([one], [two]).p < 0.05)
    assert np.mean(rejected) <= 0.05


def test_of_errors_the_lowest_block_is_chosen() -> None:
    errors = {"1": np.full(40, 0.4), "2": np.full(40, 0.2), "3": np.full(40, np.nan)}
    fit = cross_fitted_best(errors, lowest=True)
    assert fit.blocks == {"2": 1.0}
    assert fit.oracle_block == "2"
    assert cross_fitted_best(errors).blocks == {"1": 1.0}


def test_choosing_needs_blocks_of_the_same_units_and_enough_of_them() -> None:
    for records in ({}, {"1": np.ones(29), "2": np.ones(29)}, {"1": np.ones(40), "2": np.ones(50)}):
        with pytest.raises(ValueError, match="cannot be chosen"):
            cross_fitted_best(records)
    alone = cross_fitted_best({"7": np.arange(40) / 40})
    assert (alone.blocks, alone.optimism) == ({"7": 1.0}, 0.0)


def test_all_signs_are_gone_through() -> None:
    values = np.array([0.3, 0.2, 0.5, 0.1, 0.4, 0.25])
    found = difference([estimate(values)], [estimate(np.zeros(6))])
    sums = [abs(np.dot(signs, values)) for signs in itertools.product((1, -1), repeat=6)]
    assert found.p == pytest.approx(np.mean(np.array(sums) >= values.sum() - 1e-12)) == 2 / 64


def of_areas(seed: int, n: int, classes: int, frequency: float = 0.3) -> np.ndarray:
    rng = np.random.default_rng(seed)
    union = rng.integers(5, 50, (n, classes)) * (rng.random((n, classes)) < frequency)
    return np.stack([(union * rng.random((n, classes))).astype(np.int64), union], -1)


@pytest.mark.parametrize("n", [6, 12, 40])
def test_areas_are_compared_by_students_t_of_the_jackknife_however_few_images(n: int) -> None:
    """A class in one image has part 0: all signs gave its share to every image."""
    first, second = of_areas(0, n, 21), of_areas(1, n, 21)
    found, apart = difference([estimate(first)], [estimate(second)]), estimate(first) - estimate(second)
    assert n > 12 or apart.lone.any()
    t = abs(found.value) / apart.standard_error
    assert found.p == pytest.approx(2 * stats.t.sf(t, n - 1))
    half = stats.t.ppf(0.975, n - 1) * apart.standard_error
    assert (found.low, found.high) == pytest.approx((found.value - half, found.value + half))


def test_videos_with_most_of_the_objects_leave_few_degrees_of_freedom() -> None:
    counts = np.array([9, 1, 1, 1, 2, 1, 7, 1, 1, 1])
    rng = np.random.default_rng(0)
    first, second = (np.stack([counts * rng.random(10), counts], -1)[:, None] for _ in range(2))
    apart, found = estimate(first) - estimate(second), difference([estimate(first)], [estimate(second)])
    degrees = counts.sum() ** 2 / np.square(counts).sum() - 1
    assert degrees < 4
    assert found.p == pytest.approx(2 * stats.t.sf(abs(found.value) / apart.standard_error, degrees))
    several = difference(*([estimate(side)] * 6 for side in (first, second)))
    assert several.p >= found.p - 1e-12, "nor do seeds that are alike help"


def test_the_interval_of_classes_that_are_mostly_in_single_images_is_not_shown() -> None:
    for frequency, unsure in ((0.05, True), (0.6, False)):
        sides = [estimate(of_areas(seed, 8, 40, frequency)) for seed in (0, 1)]
        apart = sides[0] - sides[1]
        found = difference(sides[:1], sides[1:])
        lone, classes = apart.lone.sum(), (apart.sizes > 0).sum()
        assert (lone > 0.5 * classes) is np.bool_(unsure)
        assert found.unsure == (f"{lone} of {classes} classes are in a single image" if unsure else "")
        assert found.low < found.value < found.high, "it is there for who asks"
    assert difference([known(0.5, 0.1)], [known(0.4, 0.1)]).unsure == ""


def test_of_equal_areas_nothing_differs() -> None:
    same = estimate(of_areas(0, 8, 21))
    found = difference([same], [same])
    assert (found.value, found.p) == (0, 1)
    assert math.isnan(found.low)


def test_a_verdict_on_one_training_each_takes_luck_to_be_as_large_as_the_units_error() -> None:
    """The variance of an unpaired difference on either side, beside that of the paired one."""
    rng = np.random.default_rng(2)
    base = rng.random(80)
    a, b = (base + 0.2 * rng.standard_normal(80) + shift for shift in (0.05, 0.0))
    found = difference([estimate(a)], [estimate(b)])
    assert (found.kind, found.seeds) == (ONE_EACH, False)
    squared = stats.sem(a - b) ** 2 + 2 * (stats.sem(a) ** 2 + stats.sem(b) ** 2)
    assert found.with_luck == pytest.approx(2 * stats.t.sf(abs(found.value) / math.sqrt(squared), 79))
    assert found.within_luck is (found.p < 0.05 <= found.with_luck)
    assert Judgement(found).p == found.of_networks == found.with_luck > found.p
    several = difference([estimate(a), estimate(a + 0.01)], [estimate(b), estimate(b + 0.01)])
    assert (several.kind, several.seeds, several.of_networks) == (OVER_SEEDS, True, several.p)
    assert math.isnan(several.with_luck)
    assert not several.within_luck


def test_two_seeds_of_one_network_are_rarely_called_different_where_luck_is_one_standard_error() -> None:
    """They were in every third pair by units alone. 5 % of 300 are 15; more than 27 has a chance of 0.2 %."""
    rng, wrong, by_units = np.random.default_rng(0), 0, 0
    for _ in range(300):
        shared = rng.standard_normal(60)
        scores = [(shared + rng.standard_normal(60)) / 2 + rng.standard_normal() / math.sqrt(60) for _ in range(2)]
        found = difference(*([estimate(own)] for own in scores))
        wrong, by_units = wrong + (found.with_luck < 0.05), by_units + (found.p < 0.05)
    assert wrong <= 27 < 60 < by_units


@pytest.mark.parametrize(("units", "none"), [(0, True), (60, False)])
def test_unpaired_scores_have_luck_too_and_published_numbers_only_the_error_that_is_assumed(
    units: int, none: bool
) -> None:
    found = difference([known(0.5, 0.01, units)], [known(0.45, 0.01, units)])
    assert found.kind == ONE_EACH
    degrees = math.inf if none else units - 1
    assert found.p == pytest.approx(2 * stats.t.sf(5 / math.sqrt(2), degrees))
    assert math.isnan(found.with_luck) is none
    assert found.of_networks == pytest.approx(found.p if none else 2 * stats.t.sf(5 / math.sqrt(6), degrees))


def test_a_gain_that_is_undecided_leaves_the_verdict_undecided() -> None:
    """Nothing follows from five images before training: p is nan, and not that of the difference alone."""
    sure, unsure = Difference(0.1, 0.05, 0.15, 0.001, 50), Difference(0.2, math.nan, math.nan, math.nan, 5)
    assert decided([Judgement(sure)])[0][0] == 1
    assert math.isnan(Judgement(sure, unsure).p)
    assert decided([Judgement(sure, unsure)])[0][0] == 0


def test_a_gain_is_paired_by_seed() -> None:
    """Seeds that start 20 points apart and all gain 5: sure by seed, nothing as two samples."""
    rng = np.random.default_rng(0)
    base = rng.random(300)
    starts = [base + start + 0.01 * rng.standard_normal(300) for start in (0.0, 0.2, 0.4)]
    after = [start + 0.05 + 0.01 * rng.standard_normal(300) for start in starts]
    before, now = ([estimate(records) for records in side] for side in (starts, after))
    found = gain_of(now, before)
    assert found is not None
    assert found.p < 0.001
    assert found.high - found.low < 0.02
    assert difference(now, before).p > 0.5
    turned = gain_of(now, before[::-1])
    assert turned is not None
    assert turned.p > 0.05


def test_the_variance_is_at_least_that_of_seeds_and_that_of_units_alone() -> None:
    """Variance common to seeds and units is subtracted once, and its estimate may be larger than either of theirs."""
    rng = np.random.default_rng(1)
    noise = rng.standard_normal((2, 3, 40))
    noise -= noise.mean(2, keepdims=True)
    base = rng.random(40)

    def sides(spread: float, own: float) -> list[list[Estimate]]:
        shifts = spread * np.array([-1.0, 0.0, 1.0])
        return [[estimate(base + own * unit + shift) for unit, shift in zip(of, shifts, strict=True)] for of in noise]

    alike = sides(0.0, 1.0)  # seeds score the same by chance: units are left
    apart = noise[0].mean(0) - noise[1].mean(0)
    found = difference(*alike)
    error = (found.high - found.low) / 2
    assert stats.t.ppf(0.975, 2 + 2 / 3) * (1 - 1e-9) <= error / stats.sem(apart) <= stats.t.ppf(0.975, 2) * (1 + 1e-9)
    for side in noise:  # no unit tells the two means apart: seeds are left
        side -= side.mean(0)
    differing = difference(*sides(0.1, 1.0))
    error = math.sqrt(2 * 0.1**2 / 3)
    assert differing.high - differing.low == pytest.approx(2 * stats.t.ppf(0.975, 2 + 2 / 3) * error, rel=1e-6)


@pytest.mark.parametrize(("seeds", "comparisons"), [(3, 8), (5, 24), (2, 1)])
def test_the_least_gap_is_found_as_often_as_it_says(seeds: int, comparisons: int) -> None:
    """80 % of 500, within 4 standard errors."""
    gap, rng, found = least_gap(seeds, comparisons), np.random.default_rng(0), 0
    for first, second in rng.standard_normal((500, 2, seeds)):
        apart = difference([known(value + gap) for value in first], [known(value) for value in second])
        found += apart.p < 0.05 / comparisons
    assert found / 500 == pytest.approx(0.8, abs=4 * math.sqrt(0.16 / 500))


def test_fewer_seeds_need_larger_gaps_and_one_finds_none() -> None:
    gaps = [least_gap(seeds, 8) for seeds in (1, 2, 3, 4, 5, 10)]
    assert gaps[0] == math.inf
    assert gaps == sorted(gaps, reverse=True)
    assert least_gap(3, 1) < least_gap(3, 8) < least_gap(3, 8, 0.95)
    for wrong in ((0, 1, 0.8), (3, 0, 0.8), (3, 1, 1.0)):
        with pytest.raises(ValueError, match="seeds"):
            least_gap(*wrong)
