"""The block at which a network is read: which rule chooses it, and what it then scores, against brute force."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from dinoskip.decisions import cross_fitting
from dinoskip.decisions.choosing import (
    ALONE,
    BY_CROSS_FITTING,
    BY_HELD_OUT,
    ON_SHOWN,
    TOO_FEW,
    choose,
    last_of,
    records_by_row,
    score_of,
)
from dinoskip.decisions.cross_fitting import LEAST_TO_CHOOSE, cross_fitted_best
from dinoskip.results.records import ImageRecords
from dinoskip.results.rows import CROSS_FITTED, FIXED, HELD_OUT, SHOWN, EvalResult, combined
from dinoskip.results.statistics import score
from tests.helpers.an_error import METRIC, distance_is_a_task

__all__ = ["distance_is_a_task"]

COUNT = 40
IDS = tuple(f"image {number:02}" for number in range(COUNT))
CORLOC = EvalResult("CorLoc", 0.0, "tokencut", "", "voc", "val", COUNT, model="net", epoch=3)
ERROR = EvalResult(METRIC, 0.0, "distance", "", "nyu", "test", COUNT, model="net", epoch=3)


def of_block(like: EvalResult, block: int, fits: Sequence[np.ndarray], ids: tuple[str, ...] = IDS, **more: object):
    """A row of a block, and its records, one a fit."""
    unit = 1 if like is ERROR else 100
    row = replace(like, block=str(block), value=unit * float(np.mean([score(fit) for fit in fits])), **more)
    return row, [ImageRecords(ids, fit) for fit in fits]


def hits(rates: Sequence[float], fits: int = 1, seed: int = 0):
    rng = np.random.default_rng(seed)
    return dict(
        of_block(CORLOC, block, [(rng.random(COUNT) < rate).astype(np.uint8) for _ in range(fits)])
        for block, rate in enumerate(rates, 1)
    )


def chosen(records, **more):
    return choose({row.block: row for row in records}, records, **more)


def test_each_rule_chooses_where_those_before_it_cannot() -> None:
    assert choose({}, {}) is None
    every = hits((0.9, 0.5, 0.2))
    (one, *_) = every
    found = choose({"1": one}, {})
    assert (found.how, found.selected, found.block) == (ALONE, FIXED, "b1")
    held = {replace(row, heldout=float(row.block)): records for row, records in every.items()}
    found = chosen(held)
    assert (found.how, found.selected, found.block, found.best.block) == (BY_HELD_OUT, HELD_OUT, "b3", "1")
    (first, *others) = held
    partly = {replace(first, heldout=None): held[first], **{row: held[row] for row in others}}
    assert chosen(partly).how == BY_CROSS_FITTING, "a block without a score on held-out images is not left out"
    found = chosen(every)
    assert (found.how, found.selected, found.block) == (BY_CROSS_FITTING, CROSS_FITTED, "b1")
    few = {row: [ImageRecords(IDS[:29], fit.values[:29]) for fit in fits] for row, fits in every.items()}
    found = chosen(few)
    assert (found.how, found.selected, found.block, found.best.block) == (TOO_FEW, FIXED, "b3", "1")
    found = choose({row.block: row for row in every}, {})
    assert (found.how, found.selected, found.block, found.optimism) == (ON_SHOWN, SHOWN, "b1", 0)


def test_thirty_images_are_enough_to_choose() -> None:
    assert LEAST_TO_CHOOSE == 30
    every = hits((0.9, 0.5))
    enough = {row: [ImageRecords(IDS[:30], fit.values[:30]) for fit in fits] for row, fits in every.items()}
    assert chosen(enough).how == BY_CROSS_FITTING


@pytest.mark.parametrize("change", ["one fit more", "other images", "none"])
def test_blocks_that_were_not_measured_alike_are_chosen_on_the_images_shown(change: str) -> None:
    every = hits((0.9, 0.5), fits=2)
    (_, last) = every
    every[last] = {
        "one fit more": [*every[last], every[last][0]],
        "other images": [every[last][0], ImageRecords(tuple(f"x{name}" for name in IDS), every[last][1].values)],
        "none": [],
    }[change]
    assert chosen(every).selected == SHOWN


@pytest.mark.parametrize("classes", [0, 3])
def test_several_fits_are_chosen_and_scored_together(classes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was an upper estimate that got a verdict on one page, and an error on another."""
    rng = np.random.default_rng(4)

    def made() -> np.ndarray:
        if not classes:
            return (rng.random(COUNT) < 0.5).astype(np.uint8)
        union = rng.integers(0, 50, (COUNT, classes))
        return np.stack([(union * rng.random((COUNT, classes))).astype(np.int64), union], -1)

    fits = {str(block): [made() for _ in range(3)] for block in range(1, 5)}
    draws: list[np.ndarray] = []

    class Recorded:
        def __init__(self, *about: object) -> None:
            self.rng = np.random.default_rng(0)

        def permutation(self, n: int) -> np.ndarray:
            draws.append(self.rng.permutation(n))
            return draws[-1]

    monkeypatch.setattr(cross_fitting, "numpy_rng", Recorded)
    found = cross_fitted_best(fits)

    def mean(block: str, units: np.ndarray) -> float:
        return float(np.mean([score(fit[units]) for fit in fits[block]]))

    values, taken = [], []
    for order in draws:
        first, second = order[: COUNT // 2], order[COUNT // 2 :]
        blocks = [max(fits, key=lambda block: mean(block, other)) for other in (second, first)]
        pairs = zip(fits[blocks[0]], fits[blocks[1]], strict=True)
        values.append([score(np.concatenate([one[first], two[second]])) for one, two in pairs])
        taken += blocks
    each = [mean(block, np.arange(COUNT)) for block in fits]
    assert found.estimate.value == pytest.approx(np.clip(np.mean(values), min(each), max(each)))
    assert found.blocks == pytest.approx({block: taken.count(block) / 100 for block in set(taken)})
    assert found.estimate.fits == pytest.approx(np.var(np.mean(values, axis=0), ddof=1) / 3)
    assert found.oracle == pytest.approx(max(each))


def test_equal_fits_are_no_more_than_one() -> None:
    every = hits((0.6, 0.55, 0.5))
    alone = chosen(every)
    doubled = chosen({row: fits * 2 for row, fits in every.items()})
    assert (doubled.value, doubled.blocks) == (pytest.approx(alone.value), alone.blocks)
    assert doubled.estimate.parts == pytest.approx(alone.estimate.parts)
    assert len(doubled.outcomes) == 2


def test_the_jackknife_of_a_choice_repeats_it_without_each_image() -> None:
    """The choice of the last image's half counts in the error: blocks held, it would be too small."""
    rng = np.random.default_rng(1)
    near = {str(block): [rng.random(COUNT) for _ in range(2)] for block in range(6)}
    found = cross_fitted_best(near).estimate
    kept = []
    for left in range(COUNT):
        rest = {
            block: [np.where(np.arange(COUNT) == left, np.nan, fit) for fit in fits] for block, fits in near.items()
        }
        kept.append(cross_fitted_best(rest).estimate.value)
    expected = (COUNT - 1) * (found.value - np.array(kept))
    assert np.corrcoef(found.parts.sum(1), expected)[0, 1] > 0.9


@pytest.mark.parametrize("how", [ON_SHOWN, BY_CROSS_FITTING])
def test_of_errors_the_lowest_block_is_the_best(how: str) -> None:
    rng = np.random.default_rng(2)
    every = dict(
        of_block(ERROR, block, [(level + 0.01 * rng.standard_normal(COUNT)) / 100])
        for block, level in enumerate((0.9, 0.5, 0.7), 1)
    )
    every = {replace(row, value=100 * row.value): records for row, records in every.items()}
    found = choose({row.block: row for row in every}, every if how == BY_CROSS_FITTING else {})
    assert (found.how, found.block, found.best.block) == (how, "b2", "2")
    high = replace(found, value=0.9)
    assert high.optimism == pytest.approx(0.9 - found.best.value), "the best on the images shown is lower"


def test_what_was_chosen_on_the_images_shown_makes_all_of_a_number_shown() -> None:
    assert [combined(pair) for pair in ((), (FIXED, HELD_OUT), (CROSS_FITTED, HELD_OUT), (FIXED, SHOWN))] == [
        FIXED,
        HELD_OUT,
        CROSS_FITTED,
        SHOWN,
    ]
    every = hits((0.9, 0.5))
    for selected, wanted in ((HELD_OUT, CROSS_FITTED), (SHOWN, SHOWN)):
        found = chosen({replace(row, selected=selected): records for row, records in every.items()})
        assert (found.how, found.selected) == (BY_CROSS_FITTING, wanted)
    row = replace(next(iter(every)), selected=SHOWN)
    assert score_of(row).selected == SHOWN
    assert choose({"1": row}, {}).selected == SHOWN
    (first, last) = every
    mixed = choose({"1": replace(first, heldout=2.0), "2": replace(last, heldout=1.0, selected=SHOWN)}, {})
    assert (mixed.block, mixed.selected) == ("b1", SHOWN), "the trials of every block are what is chosen among"


def test_the_last_block_is_the_highest_number_and_the_first_read_point() -> None:
    rows = {place: replace(CORLOC, block=place.split()[0]) for place in ("9 out", "12 out", "12 mlp", "2 out")}
    assert last_of(rows) == "12 out"


def test_a_mean_over_fits_has_the_records_of_its_fits() -> None:
    rng = np.random.default_rng(0)
    fits = [rng.random(COUNT) for _ in range(2)]
    mean = replace(CORLOC, block="1", value=50.0, deviation=1.0, seed=4)
    of_fits = {
        replace(mean, value=v, deviation=None, low=1.0, high=2.0, seed=s, note=f"seed {s}"): ImageRecords(IDS, own)
        for s, (v, own) in enumerate(zip((49.0, 51.0), fits, strict=True))
    }
    other = {replace(row, block="2"): record for row, record in of_fits.items()}
    found = records_by_row([mean, *of_fits, *other], {**of_fits, **other})
    assert list(found) == [mean]
    assert [record.values is own for record, own in zip(found[mean], fits, strict=True)] == [True, True]
