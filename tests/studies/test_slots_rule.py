"""The rule of the slots: what may be tested with how many seeds, and what is said of a difference."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from dinoskip.results.statistics import holm
from studies.slots_rows import Slot
from studies.slots_rule import (
    HALF_OF_PAPER,
    PRIMARY,
    SECONDARY,
    baseline,
    by_heldout,
    compare,
    complete,
    cuts,
    obstacle_to,
    pairs_of,
    probes,
    scores,
    shares,
)
from tests.helpers.slots import IMAGES, slot

pytestmark = pytest.mark.slow  # simulated studies, by a frozen script

EQUAL = {"A": {"P1": 0.4, "P2": 0.3}, "B": {"P1": 0.4, "P2": 0.3}, "C": {"P1": 0.4, "P2": 0.3}}
BETTER = {**EQUAL, "B": {"P1": 0.7, "P2": 0.5}, "C": {"P1": 0.25, "P2": 0.2}}


def slots(levels: dict[str, dict[str, float]], seeds: int, **more: object) -> list[Slot]:
    return [slot(number, levels, **more) for number in range(2, 2 + seeds)]  # type: ignore[arg-type]


ALL = [("B", "P1"), ("C", "P1"), ("B", "P2"), ("C", "P2")]


@pytest.mark.parametrize(("seeds", "pairs"), [(0, []), (1, []), (2, []), (3, [("B", "P1")]), (4, ALL), (5, ALL)])
def test_what_is_tested_with_so_many_seeds(seeds: int, pairs: list[tuple[str, str]]) -> None:
    assert pairs_of(seeds) == pairs
    assert [(one.arm, one.measure) for one in compare(slots(BETTER, seeds))] == pairs


def test_large_differences_are_decided_in_their_direction_with_holms_correction() -> None:
    found = {(one.arm, one.measure): one for one in compare(slots(BETTER, 5))}
    assert all(one.decided for one in found.values())
    assert found["B", "P1"].text.startswith("better by ")
    assert found["C", "P2"].text.startswith("worse by ")
    assert found["B", "P1"].difference.value == pytest.approx(30, abs=5)
    raw = [one.difference.p for one in found.values()]
    assert [one.p for one in found.values()] == pytest.approx(holm(raw))
    assert max(one.p for one in found.values()) > max(raw) / 1.0001


def test_equal_networks_differ_by_less_than_the_far_end_and_the_papers_effect_is_absent() -> None:
    found = compare(slots(EQUAL, 5))
    assert not any(one.decided for one in found)
    for one in found:
        far = max(abs(one.difference.low), abs(one.difference.high))
        assert f"smaller than {far:.1f} points" in one.text
        assert ("the paper's effect is not here" in one.text) == (one.difference.high < HALF_OF_PAPER[one.measure])
    assert any("not here" in one.text for one in found)


def test_a_measure_is_silent_where_the_network_with_skips_is_not_above_a_random_patch() -> None:
    found = compare(slots(BETTER, 5, floor=0.6))
    assert not any(one.decided for one in found)
    assert all(one.text.startswith("silent") for one in found)


def test_the_better_network_must_be_above_its_own_start() -> None:
    every = slots(BETTER, 5, start=0.75)
    (reason,) = [
        obstacle_to(every, complete(every), one.arm, one.measure, one.difference)
        for one in compare(every)
        if (one.arm, one.measure) == ("B", "P1")
    ]
    assert reason is not None
    assert "B is not above its own start" in reason


def test_an_arm_whose_best_rate_is_at_the_edge_has_no_verdict() -> None:
    every = [replace(one, card={**one.card, "unresolved": ["C"]}) for one in slots(BETTER, 5)]
    found = {(one.arm, one.measure): one for one in compare(every)}
    assert found["B", "P1"].decided
    assert not found["C", "P1"].decided
    assert found["C", "P1"].text.startswith("unresolved")


def test_a_slot_without_an_arm_and_slot_1_count_in_no_test() -> None:
    whole, lost = slots(BETTER, 4)[:3], slots(BETTER, 4)[3]
    without = replace(lost, recorded=[e for e in lost.recorded if not e.row.model.startswith("paper")])
    first = replace(lost, number=1, card={**lost.card, "slot": 1})
    assert [one.number for one in complete([first, *whole, without])] == [2, 3, 4]
    assert [(one.arm, one.measure) for one in compare([first, *whole, without])] == [("B", "P1")]


def test_primary_measures_read_the_rows_that_they_name() -> None:
    one = slot(2, BETTER)
    entries = one.of("B")
    assert len(cuts(entries)) == len(probes(entries, "scenes")) == 12
    assert {e.row.value for e in cuts(entries, positions="mean").values()} == {90.0}
    assert {e.row.value for e in cuts(entries, "out").values()} == {40.0}
    best = max(probes(entries, "voc_mini").values(), key=lambda e: e.row.heldout or 0)
    chosen = by_heldout(probes(entries, "voc_mini"))
    assert chosen is not None
    assert 100 * chosen.value == pytest.approx(best.row.value, abs=1e-6)
    fitted = PRIMARY["P1"].of(entries)
    assert fitted is not None
    values = [e.row.value for e in cuts(entries).values()]
    assert min(values) <= 100 * fitted.value <= max(values)
    assert baseline([one], "P1") == 5.0
    assert len(scores([one], "A", "P2")) == 1
    assert shares(entries, "complete") == pytest.approx(dict.fromkeys(range(1, 13), 10.0))


def test_a_miss_counts_and_too_few_images_give_no_block() -> None:
    entries = slot(2, EQUAL).of("A")
    missed = [replace(e, values=np.zeros(IMAGES, np.uint8)) if e.row.task == "tokencut" else e for e in entries]
    none = PRIMARY["P1"].of(missed)
    assert none is not None
    assert none.value == 0.0
    few = [replace(e, values=e.values[:20]) for e in entries if e.values is not None]
    assert PRIMARY["P1"].of(few) is None
    assert PRIMARY["P1"].of([]) is None


def test_secondary_measures_of_all_rows_and_of_none() -> None:
    entries = slot(2, EQUAL).of("C")
    assert all(math.isfinite(of(entries) or math.nan) for of in SECONDARY.values())
    assert {of([]) for of in SECONDARY.values()} == {None}
