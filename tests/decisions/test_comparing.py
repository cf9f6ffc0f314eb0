"""Decided comparisons of a page, the words of their verdicts, and the reasons that leave others undecided."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from dinoskip.decisions.choosing import Score
from dinoskip.decisions.comparing import (
    BETTER,
    HIGHER,
    LOWER,
    UNDECIDED,
    WITHIN_LUCK,
    WORSE,
    ComparedPair,
    NetworkScores,
    Verdict,
    above_rule,
    above_start,
    aligned,
    chance_of_nothing,
    compared_pair,
    decide,
    low_power,
    separating,
)
from dinoskip.results.estimates import Difference, difference, least_gap
from dinoskip.results.records import ImageRecords
from dinoskip.results.rows import CROSS_FITTED, FIXED, HELD_OUT, SHOWN, EvalResult
from dinoskip.results.statistics import holm
from tests.helpers.an_error import METRIC, distance_is_a_task

__all__ = ["distance_is_a_task"]

COUNT = 60
IDS = tuple(str(number) for number in range(COUNT))
ROW = EvalResult("PCK@0.1 per image", 0.0, "correspond", "1", "pairs", "test", COUNT, model="net", epoch=3)
LIFELESS = {"token_cosine": 0.999, "complete": 1.0, "degenerate": 1.0}


def scored(level: float, seed: int, *, row: EvalResult = ROW, noise: float = 0.02, **more: object) -> Score:
    """A score of images that share what is hard about them; of errors the levels are in their unit."""
    shared = 0.05 * np.random.default_rng(99).standard_normal(COUNT)
    own = level + shared + noise * np.random.default_rng(seed).standard_normal(COUNT)
    values = own / 100 if row.metric == METRIC else own
    row = replace(row, value=100 * float(values.mean()))
    return Score(row, row.value, ("1",), outcomes=(ImageRecords(IDS, values),), **more)


def network(name: str, *levels: float, starts: tuple[float, ...] = (), row: EvalResult = ROW, **more: object):
    """A network with a seed of training each of ``levels``."""
    made = [scored(level, 17 * len(name) + seed, row=row, **more) for seed, level in enumerate(levels)]
    before = [scored(level, 900 + seed, row=row) for seed, level in enumerate(starts)]
    return NetworkScores(name, tuple(made), tuple(before))


def pair_of(first: NetworkScores, second: NetworkScores) -> ComparedPair:
    made = compared_pair(first, second)
    assert made is not None
    return made


def verdict(first: NetworkScores, second: NetworkScores) -> Verdict:
    return decide([pair_of(first, second)])[0]


HIGH, LOW = (0.70, 0.71, 0.705), (0.30, 0.31, 0.305)


def test_several_trainings_are_better_or_worse_and_one_each_is_higher_or_lower() -> None:
    several = verdict(network("a", *HIGH), network("bb", *LOW))
    assert (several.sign, several.word, several.said, several.why) == (1, BETTER, BETTER, "")
    assert verdict(network("a", *LOW), network("bb", *HIGH)).word == WORSE
    once = verdict(network("a", 0.7), network("bb", 0.3))
    assert (once.sign, once.word, once.said) == (1, HIGHER, "higher, one training each")
    assert verdict(network("a", 0.3), network("bb", 0.7)).said == "lower, one training each"
    uneven = verdict(network("a", *HIGH), network("bb", 0.3))
    assert (uneven.word, uneven.said, uneven.why) == (UNDECIDED, UNDECIDED, "one seed on one side")
    assert not uneven.one_each
    assert once.certainty.startswith("higher, one training each, p ")


def test_of_one_training_each_the_luck_of_training_may_explain_what_images_tell_apart() -> None:
    pair = pair_of(network("a", 0.5), network("bb", 0.485))
    (found,) = decide([pair])
    assert pair.judgement.difference.p < 0.05
    assert (found.word, found.why) == (UNDECIDED, WITHIN_LUCK)


ERROR = EvalResult(METRIC, 0.0, "distance", "1", "nyu", "test", COUNT, model="net", epoch=3)


def test_of_errors_the_lower_network_is_better() -> None:
    low, high = network("a", *LOW, row=ERROR), network("bb", *HIGH, row=ERROR)
    pair = pair_of(low, high)
    assert (pair.lowest, pair.direction, pair.leader) == (True, 1, low)
    assert pair.judgement.difference.value == pytest.approx(np.mean(LOW) / 100 - np.mean(HIGH) / 100, abs=1e-3)
    assert verdict(low, high).word == BETTER
    assert verdict(high, low).word == WORSE
    once = verdict(network("a", 0.3, row=ERROR), network("bb", 0.7, row=ERROR))
    assert (once.sign, once.word) == (1, LOWER), "the word is of the numbers"


@pytest.mark.parametrize(("start", "word"), [(0.6, BETTER), (0.3, UNDECIDED), (0.1, UNDECIDED)])
def test_of_errors_a_gain_is_a_fall(start: float, word: str) -> None:
    low = network("a", *LOW, starts=(start,) * 3, row=ERROR)
    found = verdict(low, network("bb", *HIGH, row=ERROR))
    assert found.word == word
    assert (low.gain.value > 0) is (start > 0.305)


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize(
    ("starts", "word"),
    [
        ((0.3, 0.3, 0.3), BETTER),
        ((0.705, 0.705, 0.705), UNDECIDED),
        ((0.9, 0.9, 0.9), UNDECIDED),
        ((0.3, 0.9, 0.6), UNDECIDED),
    ],
)
def test_the_leader_must_be_clearly_above_its_own_start(starts: tuple[float, ...], word: str, flip: bool) -> None:
    """A gain in the mean that seeds do not agree on is none."""
    leader, other = network("a", *HIGH, starts=starts), network("bb", *LOW, starts=(0.9, 0.9, 0.9))
    found = verdict(other, leader) if flip else verdict(leader, other)
    assert found.word == (WORSE if flip and word == BETTER else word)
    assert found.why.startswith("a is not clearly above its own initialisation (") is (word == UNDECIDED)


def test_starts_are_paired_by_seed() -> None:
    """Levels of seeds that differ more than any gain, and gain alike: unpaired it could not be told."""
    levels, starts = (0.5, 0.6, 0.7), (0.45, 0.55, 0.65)
    found = verdict(network("a", *levels, starts=starts), network("bb", 0.1, 0.1001, 0.1002))
    assert found.word == BETTER
    unpaired = network("a", *levels, starts=(starts[1], starts[2], starts[0]))
    assert verdict(unpaired, network("bb", 0.1, 0.1001, 0.1002)).word == UNDECIDED


def test_a_gain_that_is_not_known_leaves_a_comparison_undecided() -> None:
    """Five images before training: the gain has no p, and the difference alone decides nothing."""
    five = Score(replace(ROW, value=10.0, n=5), 10.0, ("1",), 9.0, 11.0)
    leader = NetworkScores("a", tuple(replace(score, low=69.0, high=71.0) for score in network("a", 0.7).now), (five,))
    other = NetworkScores("b", tuple(replace(score, low=29.0, high=31.0) for score in network("bb", 0.3).now))
    pair = pair_of(leader, other)
    assert math.isnan(pair.judgement.gain.p)
    assert pair.judgement.difference.p < 1e-3
    assert math.isnan(pair.judgement.p)
    found = decide([pair])[0]
    assert (found.sign, math.isnan(found.p)) == (0, True)
    assert decide([pair_of(replace(leader, before=()), other)])[0].sign == 1, "without a start it is taken on trust"


@pytest.mark.parametrize(
    ("starts", "dead"),
    [((), True), ((0.705, 0.705, 0.705), True), ((0.3, 0.9, 0.6), True), ((0.8, 0.8, 0.8), True), (LOW, False)],
)
def test_a_lifeless_network_is_dead_until_a_gain_is_known(starts: tuple[float, ...], dead: bool) -> None:
    """A gain of 10 points in the mean on which seeds do not agree is not known."""
    row = replace(ROW, **LIFELESS)
    leader = network("a", *HIGH, starts=starts, row=row)
    assert leader.is_dead is dead
    found = verdict(leader, network("bb", *LOW))
    assert (found.word, found.why) == ((UNDECIDED, "a has collapsed") if dead else (BETTER, ""))
    lost = verdict(network("bb", 0.9, 0.91, 0.905), leader)
    assert lost.word == BETTER, "a dead network still loses"
    assert not replace(leader, now=network("a", *HIGH).now).is_dead, "its tokens are not alike"


def test_one_lifeless_seed_makes_a_network_lifeless() -> None:
    alive, gone = network("a", *HIGH), network("a", *HIGH, row=replace(ROW, **LIFELESS))
    assert NetworkScores("a", (*alive.now[:2], gone.now[2])).is_dead


@pytest.mark.parametrize("selected", [FIXED, HELD_OUT, CROSS_FITTED, SHOWN])
@pytest.mark.parametrize("side", [0, 1])
def test_what_was_chosen_on_the_images_shown_is_in_no_verdict(selected: str, side: int) -> None:
    levels = [HIGH, LOW]
    sides = [network(name, *level) for name, level in zip(("a", "bb"), levels, strict=True)]
    one = replace(sides[side].now[1], selected=selected)
    sides[side] = replace(sides[side], now=(sides[side].now[0], one, sides[side].now[2]))
    found = verdict(*sides)
    if selected != SHOWN:
        assert (found.word, found.why) == (BETTER, "")
        return
    assert (found.word, found.sign, math.isnan(found.p)) == (UNDECIDED, 0, True)
    assert found.why == f"chosen on the images shown: {sides[side].name}"


@pytest.mark.parametrize("why", ["shown", "rate"])
def test_what_cannot_be_decided_is_no_part_of_the_correction(why: str) -> None:
    near = pair_of(network("a", 0.50, 0.51, 0.52), network("bb", 0.46, 0.47, 0.475))
    p = near.judgement.p
    assert 0.01 < p < 0.05
    barred = replace(near, first=replace(near.first, name="ccccc"))
    first = barred.first
    if why == "shown":
        first = replace(first, now=tuple(replace(score, selected=SHOWN) for score in first.now))
    else:
        first = replace(first, unresolved="4 rates were tried")
    barred = replace(barred, first=first)
    near_verdict, other = decide([near, barred])
    assert (near_verdict.word, near_verdict.p, near_verdict.comparisons) == (BETTER, pytest.approx(p), 1)
    assert other.why == ("chosen on the images shown: ccccc" if why == "shown" else "rate of ccccc unresolved")
    assert decide([near, near])[0].p == pytest.approx(2 * p)


def test_all_comparisons_of_a_page_are_corrected_together_and_the_same_numbers_once() -> None:
    near = pair_of(network("a", 0.50, 0.51, 0.52), network("bb", 0.46, 0.47, 0.475))
    p = near.judgement.p
    assert decide([near])[0].word == BETTER
    several = decide([near] * 3)
    assert [found.word for found in several] == [UNDECIDED] * 3
    assert [found.p for found in several] == pytest.approx(holm([p] * 3))
    same = decide([near] * 3, keys=["x", "x", "x"])
    assert [(found.word, found.p, found.comparisons) for found in same] == [(BETTER, pytest.approx(p), 1)] * 3
    mixed = decide([near] * 3, keys=["x", "y", "x"])
    assert [found.p for found in mixed] == pytest.approx([2 * p] * 3)
    assert decide([]) == []


def test_a_silent_measure_is_undecided_and_stays_in_the_correction() -> None:
    near = pair_of(network("a", 0.50, 0.51, 0.52), network("bb", 0.46, 0.47, 0.475))
    loud, silent = decide([near, near], silent=["", "it separates nothing"])
    assert (silent.word, silent.why) == (UNDECIDED, "it separates nothing")
    assert loud.p == pytest.approx(2 * near.judgement.p)


def test_a_margin_is_given_to_the_first() -> None:
    first, second = network("a", 0.500, 0.501, 0.502), network("bb", 0.51, 0.511, 0.512)
    assert pair_of(first, second).direction == -1
    margin = compared_pair(first, second, 3.0)
    assert (margin.direction, margin.leader) == (1, first)
    assert margin.judgement.difference.value == pytest.approx(0.02, abs=3e-3)


def test_equal_numbers_have_no_direction_and_no_verdict() -> None:
    first = network("a", *HIGH)
    pair = pair_of(first, replace(first, name="bb"))
    assert pair.direction == 0
    assert decide([pair])[0].word == UNDECIDED


def test_without_records_intervals_or_seeds_there_is_no_comparison() -> None:
    bare = NetworkScores("a", (Score(ROW, 40.0, ("1",)),))
    assert compared_pair(bare, replace(bare, name="b")) is None
    seeds = NetworkScores("a", (Score(ROW, 40.0, ("1",)), Score(ROW, 41.0, ("1",))))
    assert compared_pair(seeds, replace(seeds, name="b")) is not None


def test_scores_are_paired_by_image_only_where_all_are_of_the_same() -> None:
    one, two = network("a", 0.5).now[0], network("bb", 0.4).now[0]
    assert aligned([one], [two])[0][0].parts.shape == (COUNT, 1)
    other = replace(two, outcomes=(ImageRecords(tuple(f"x{name}" for name in IDS), two.outcomes[0].values),))
    assert [len(side[0].parts) for side in aligned([one], [two], [other])] == [0, 0, 0]
    assert difference(*aligned([one], [two])).paired


def test_low_power_is_said_of_few_seeds_and_many_comparisons() -> None:
    pair = pair_of(network("a", *HIGH), network("bb", *LOW))
    assert low_power(pair, Verdict(0, 0.5, comparisons=1)) is None
    assert low_power(pair, Verdict(0, 0.5, comparisons=24)) == pytest.approx(least_gap(3, 24))
    assert least_gap(3, 24) > 5 > least_gap(5, 24)
    assert low_power(pair, Verdict(0, math.nan, comparisons=24)) is None, "nothing was tested"
    uneven = pair_of(network("a", *HIGH, 0.7, 0.7), network("bb", *LOW))
    assert uneven.seeds == 3
    assert low_power(uneven, Verdict(0, 0.5, comparisons=24)) == pytest.approx(least_gap(3, 24)), "the fewer count"
    once = pair_of(network("a", 0.7), network("bb", 0.3))
    assert low_power(once, Verdict(0, 0.5, comparisons=24)) is None


def apart(value: float, p: float) -> Difference:
    return Difference(value, value - 1, value + 1, p, COUNT)


def test_a_network_must_be_above_all_that_has_not_learnt() -> None:
    side = network("a", *HIGH)
    assert chance_of_nothing(side, [apart(2, 0.01), apart(1, 0.04)]) == pytest.approx(0.02), "the largest, one-sided"
    assert chance_of_nothing(side, [apart(2, 0.01), apart(-1, 0.04)]) == pytest.approx(0.98)
    assert math.isnan(chance_of_nothing(side, []))
    assert math.isnan(chance_of_nothing(side, [apart(2, 0.01), apart(1, math.nan)]))
    shown = replace(side, now=tuple(replace(score, selected=SHOWN) for score in side.now))
    assert math.isnan(chance_of_nothing(shown, [apart(2, 0.01)]))
    errors = network("a", *LOW, row=ERROR)
    assert chance_of_nothing(errors, [apart(-2, 0.01)]) == pytest.approx(0.005), "errors are to be lower"


def test_a_measure_separates_where_any_network_does_after_correction() -> None:
    assert separating([[0.01], [0.04]], ["x", "y"]) == [True, True]
    assert separating([[0.03], [0.04]], ["x", "y"]) == [False, False]
    assert separating([[0.03], [0.03]], ["x", "x"]) == [True, True], "the same numbers are one test"
    assert separating([[0.9, 0.001], [math.nan], []], ["x", "y", "z"]) == [True, None, None]


def test_own_starts_are_paired_by_seed_and_others_are_not() -> None:
    side = network("a", 0.5, 0.6, 0.7, starts=(0.45, 0.55, 0.65))
    own, other = above_start(side, side), above_start(side, replace(side, name="bb"))
    assert own.value == pytest.approx(other.value)
    assert own.p < 0.01 < other.p
    rule = above_rule(side, scored(0.1, 5))
    assert rule.value == pytest.approx(0.5, abs=0.02)
    assert rule.p < 0.05
