"""Numbers at chosen blocks and differences between them, against brute force over made-up images."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest
from scipy.special import stdtrit
from scipy.stats import binomtest

from dinoskip.decisions.choosing import BY_CROSS_FITTING, ON_SHOWN, TOO_FEW
from dinoskip.decisions.comparing import NetworkScores, compared_pair
from dinoskip.decisions.cross_fitting import cross_fitted_best
from dinoskip.decisions.wording import points
from dinoskip.results.records import ImageRecords
from dinoskip.results.rows import EvalResult
from visualize.comparison import Scores

COUNT = 80
IDS = tuple(f"image {number}" for number in range(COUNT))


def corloc(model, hits, block="1", **more):
    value = 100 * float(np.mean(hits))
    row = EvalResult("CorLoc", value, "tokencut", block, "voc", "val", COUNT, epoch=3, model=model, **more)
    return row, ImageRecords(IDS, np.asarray(hits, np.uint8))


def difference_of(one, other, margin=0.0):
    made = compared_pair(NetworkScores("", (one,)), NetworkScores("", (other,)), margin)
    return None if made is None else made.judgement.difference.in_points


def blocks_of(model, seed, rates):
    """Rows and records of blocks that hit at these rates."""
    rng = np.random.default_rng(seed)
    return dict(
        corloc(model, rng.random(COUNT) < rate, str(number), low=1.0, high=99.0) for number, rate in enumerate(rates, 1)
    )


def chosen(records, name="a"):
    scores = Scores({name: list(records)}, records)
    (benchmark,) = scores.benchmarks
    return scores.chosen(scores.rows(name, benchmark, 3))


def test_a_block_is_chosen_on_the_other_half_of_the_images():
    records = blocks_of("a", 1, [0.5] * 12)  # twelve equal blocks: the best is so by chance alone
    score = chosen(records)
    best = max(records, key=lambda row: row.value)
    assert score.how == BY_CROSS_FITTING
    assert score.best == best
    assert score.optimism == pytest.approx(best.value - score.value)
    assert score.optimism > 3, "the best of twelve equal blocks looks better than it is"
    ids = sorted(IDS)
    fit = cross_fitted_best({row.block: one.of(ids) for row, one in records.items()})
    assert score.value == pytest.approx(100 * fit.estimate.value)
    assert score.value >= min(row.value for row in records) - 1e-9
    assert score.blocks == tuple(fit.blocks)
    assert score.low < score.value < score.high


def test_a_block_that_is_best_everywhere_is_chosen_at_no_cost():
    score = chosen(blocks_of("a", 1, [0.1, 0.2, 0.9, 0.1]))
    assert set(score.blocks) == {"3"}
    assert score.block == "b3"
    assert score.optimism == pytest.approx(0)


def test_of_few_images_the_last_block_stands():
    """Half-splits of twelve videos chose by chance, and printed a number below every block."""
    few = IDS[:12]
    records = {row: ImageRecords(few, one.values[:12]) for row, one in blocks_of("a", 1, [0.9, 0.9, 0.2]).items()}
    score = chosen(records)
    assert (score.blocks, score.how, score.best.block) == (
        ("3",),
        TOO_FEW,
        max(records, key=lambda row: row.value).block,
    )


def test_without_records_the_block_is_chosen_on_the_images_shown():
    rows = list(blocks_of("a", 1, [0.4, 0.6, 0.5]))
    scores = Scores({"a": rows})
    score = scores.chosen(scores.rows("a", scores.benchmarks[0], 3))
    assert (score.how, score.value, score.optimism) == (ON_SHOWN, max(row.value for row in rows), 0)
    first = blocks_of("a", 1, [0.4, 0.6, 0.5])
    partly = dict(list(first.items())[:2])  # a block without records: none is left out of the choice
    assert Scores({"a": rows}, partly).chosen({row.block: row for row in rows}).how == ON_SHOWN


def test_earlier_last_and_several():
    records = blocks_of("a", 2, [0.9, 0.5, 0.1])
    together = replace(next(iter(records)), block="1+2", value=77.0)
    scores = Scores({"a": [*records, together]}, records)
    rows = scores.rows("a", scores.benchmarks[0], 3)
    assert scores.earlier(rows).block == "b1"
    assert scores.last(rows).row.block == "3"
    assert scores.several(rows).value == 77.0
    alone = {"1": rows["1"]}
    assert (scores.earlier(alone), scores.several(alone)) == (None, None)
    assert scores.last({}) is None


def test_hits_on_the_same_images_are_paired_by_mcnemar():
    rng = np.random.default_rng(0)
    low = rng.random(COUNT) < 0.5
    high = low | (rng.random(COUNT) < 0.2)
    pair = [corloc("high", high, low=0.0, high=99.0), corloc("low", low, low=0.0, high=99.0)]
    scores = Scores({row.model: [row] for row, _ in pair}, dict(pair))
    sides = [scores.of(row) for row, _ in pair]
    difference = difference_of(sides[0], sides[1])
    assert difference.paired
    assert difference.value == pytest.approx(pair[0][0].value - pair[1][0].value)
    assert difference.low > 0, "the high one misses nothing that the low one hits"
    assert difference.p == pytest.approx(binomtest(0, int((high & ~low).sum()), 0.5).pvalue)
    back = difference_of(sides[1], sides[0])
    assert (back.value, back.p) == (pytest.approx(-difference.value), difference.p)
    shuffled = ImageRecords(IDS[::-1], pair[1][1].values[::-1])
    again = Scores({row.model: [row] for row, _ in pair}, {pair[0][0]: pair[0][1], pair[1][0]: shuffled})
    assert difference_of(again.of(pair[0][0]), again.of(pair[1][0])) == difference, "images are paired by their ids"


def test_other_images_are_not_paired():
    pair = [corloc("a", np.ones(COUNT), low=90.0, high=100.0), corloc("b", np.zeros(COUNT), low=0.0, high=10.0)]
    elsewhere = ImageRecords(tuple(f"other {name}" for name in IDS), pair[1][1].values)
    scores = Scores({row.model: [row] for row, _ in pair}, {pair[0][0]: pair[0][1], pair[1][0]: elsewhere})
    difference = difference_of(scores.of(pair[0][0]), scores.of(pair[1][0]))
    error = math.hypot(10, 10) / 2 / NormalDist().inv_cdf(0.975) * float(stdtrit(COUNT - 1, 0.975))  # Student's
    assert not difference.paired
    assert (difference.low, difference.high) == (pytest.approx(100 - error), pytest.approx(100 + error))
    bare = replace(pair[1][0], low=None, high=None)
    assert difference_of(scores.of(pair[0][0]), scores.of(bare)) is None


def test_areas_are_paired_by_the_bootstrap_and_seeds_with_them():
    rng = np.random.default_rng(3)
    union = rng.integers(50, 100, (COUNT, 5))

    def areas(share):
        return ImageRecords(IDS, np.stack([(union * share).astype(np.int64), union], -1))

    def miou(name, value, **more):
        return EvalResult("mIoU", value, "probe", "1", "voc", "val", COUNT, epoch=3, model=name, **more)

    mean = miou("a", 62.0, deviation=1.0)
    seeds = [miou("a", 61.0, seed=7, note="seed 7", low=1.0, high=2.0), miou("a", 63.0, seed=8, note="seed 8")]
    other = miou("b", 50.0, low=49.0, high=51.0)
    records = {seeds[0]: areas(0.61), seeds[1]: areas(0.63), other: areas(0.50)}
    scores = Scores({"a": [mean, *seeds], "b": [other]}, records)
    difference = difference_of(scores.of(mean), scores.of(other))
    assert len(scores.of(mean).outcomes) == 2
    assert difference.paired
    assert difference.value == pytest.approx(12.0, abs=0.6)
    assert difference.high - difference.low > 1, "the interval holds the chance of the seeds"
    assert difference.p < 1e-6, "finer than the bootstrap's resamples can say: many comparisons are corrected for"


def test_margins_move_what_is_tested():
    pair = [corloc("a", np.ones(COUNT), low=59.0, high=61.0), corloc("b", np.ones(COUNT), low=59.0, high=61.0)]
    a, b = (Scores({}).of(replace(row, value=value)) for (row, _), value in zip(pair, (60.0, 61.0), strict=True))
    assert difference_of(a, b, margin=1.0).p == pytest.approx(1.0)
    assert difference_of(a, b, margin=3.0).p < 0.01
    assert points(difference_of(a, b)) == "−1.0 [−2.4, +0.4], unpaired"


def test_images_own_scores_are_paired_by_the_bootstrap():
    rng = np.random.default_rng(3)
    values = {name: np.clip(rng.random(COUNT) * 0.2 + base, 0, 1) for name, base in (("a", 0.5), ("b", 0.55))}
    records = {}
    for name, own in values.items():
        row, _ = corloc(name, own)
        records[row] = ImageRecords(IDS, own)
    scores = Scores({name: [row for row in records if row.model == name] for name in values}, records)
    (benchmark,) = scores.benchmarks
    one, two = (scores.chosen(scores.rows(name, benchmark, 3)) for name in values)
    assert one.value == pytest.approx(100 * values["a"].mean())
    margin = difference_of(two, one)
    assert margin.value == pytest.approx(100 * (values["b"] - values["a"]).mean())
    assert margin.low > 0
