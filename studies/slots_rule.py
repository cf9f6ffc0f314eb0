"""The rule of the slots, fixed before the first: what is measured, what is tested with how many seeds, what is said.

Two primary measures. **P1**: CorLoc by keys on the images with real boxes, degenerate graphs counted as misses, the
block cross-fitted over images. **P2**: mIoU of the linear probe on VOC2012's sample, the block chosen on held-out
training images. Contrasts are B - A and C - A, seeds and images random (:func:`dinoskip.results.estimates.difference`),
with Holm's correction over the four. A difference is decided if p < .05, the better network is above its own start, and
A is above a random patch; else it is smaller than the far end of its interval. Three seeds allow B - A on P1 alone,
fewer nothing.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import NamedTuple

from dinoskip.decisions.cross_fitting import LEAST_TO_CHOOSE, cross_fitted_best
from dinoskip.results.estimates import (
    SIGNIFICANT,
    Difference,
    Estimate,
    difference,
    estimate,
)
from dinoskip.results.records import RecordedRow
from dinoskip.results.rows import best_by_heldout
from dinoskip.results.statistics import holm
from dinoskip.settings.cut_protocols import CutProtocol
from studies.slots_arms import ARMS, SLOTS
from studies.slots_rows import Slot

BASELINE = "random patch"
CONTRASTS = ("B", "C")
"""Arms that are compared with A."""
HALF_OF_PAPER = MappingProxyType({"P1": 10.6, "P2": 3.0})
"""Half of what the paper reports with AdamW, in points: CorLoc VOC2012 32.3 to 53.5, mIoU 56.3 to 62.3."""
LATE_MEAN = range(5, 13)
PLAIN_TAU = 0.2
_POSITIONS = re.compile(r", positions (\w+)")  # how a protocol says that position was taken out before the cut
Entries = Sequence[RecordedRow]


class Primary(NamedTuple):
    """A primary measure: what it is called, and the estimate that an arm's rows give (None: not measured)."""

    title: str
    task: str
    dataset: str
    of: Callable[[Entries], Estimate | None]


# --- measures ----------------------------------------------------------------------------------------


def cuts(entries: Entries, facet: str = "key", positions: str = "keep") -> dict[int, RecordedRow]:
    """CorLoc rows of single blocks, as published but for how position is taken out of the features."""
    found: dict[int, RecordedRow] = {}
    for entry in entries:
        row, protocol = entry.row, CutProtocol.parse(entry.row.protocol)
        if protocol is None or row.metric != "CorLoc" or row.facet != facet or not row.block.isdigit():
            continue
        way = _POSITIONS.search(row.protocol)
        if (protocol.tau, protocol.centred, way[1] if way else "keep") == (PLAIN_TAU, False, positions):
            found[int(row.block)] = entry
    return dict(sorted(found.items()))


def probes(entries: Entries, dataset: str) -> dict[int, RecordedRow]:
    """mIoU rows of single blocks of a probe, of the head chosen on held-out images; not the best on validation's."""
    return {
        int(entry.row.block): entry
        for entry in entries
        if (entry.row.task, entry.row.metric, entry.row.dataset) == ("probe", "mIoU", dataset)
        and entry.row.block.isdigit()
        and not entry.row.note
    }


def cross_fitted(by_block: Mapping[int, RecordedRow]) -> Estimate | None:
    """The best block, chosen and scored on different images; None where there are too few of them, or none."""
    records = {str(block): entry.values for block, entry in by_block.items() if entry.values is not None}
    if not records or min(len(values) for values in records.values()) < LEAST_TO_CHOOSE:
        return None
    return cross_fitted_best(records).estimate


def by_heldout(by_block: Mapping[int, RecordedRow]) -> Estimate | None:
    """The block whose head is best on held-out training images."""
    best = best_by_heldout(entry.row for entry in by_block.values())
    values = next((entry.values for entry in by_block.values() if entry.row is best), None)
    return None if values is None else estimate(values)


PRIMARY: Mapping[str, Primary] = MappingProxyType(
    {
        "P1": Primary(
            "CorLoc, keys, block cross-fitted", "tokencut", "boxed", lambda entries: cross_fitted(cuts(entries))
        ),
        "P2": Primary(
            "mIoU, VOC2012 sample, block by held-out images", "probe", "voc_mini",
            lambda entries: by_heldout(probes(entries, "voc_mini")),
        ),
    }
)  # fmt: skip


# --- the rule ----------------------------------------------------------------------------------------


def pairs_of(seeds: int) -> list[tuple[str, str]]:
    """Return the contrasts and their measures that may be tested with so many seeds of every arm."""
    if seeds < 3:
        return []
    return [("B", "P1")] if seeds == 3 else [(arm, measure) for measure in PRIMARY for arm in CONTRASTS]


def complete(slots: Sequence[Slot]) -> list[Slot]:
    """Slots of which every arm has both primary measures: a lost part loses a seed, never an arm."""
    return [
        slot
        for slot in slots
        if slot.number in SLOTS and all(score_of(slot, arm, measure) is not None for arm in ARMS for measure in PRIMARY)
    ]


def baseline(slots: Sequence[Slot], measure: str, name: str = BASELINE) -> float | None:
    """Return the score, in percent, of a rule without a network on a primary measure; None if it was not measured."""
    about = PRIMARY[measure]
    metric = "CorLoc" if measure == "P1" else "mIoU"
    for slot in slots:
        for entry in slot.recorded:
            row = entry.row
            if row.is_baseline and (row.rule, row.task, row.metric, row.dataset) == (
                name,
                about.task,
                metric,
                about.dataset,
            ):
                return row.value
    return None


@cache
def score_of(slot: Slot, arm: str, measure: str, *, trained: bool = True) -> Estimate | None:
    """Return an arm's score on a primary measure in a slot; None where it was not measured."""
    return PRIMARY[measure].of(slot.of(arm, trained=trained))


def scores(slots: Sequence[Slot], arm: str, measure: str, *, trained: bool = True) -> list[Estimate]:
    """One estimate a slot that has it."""
    found = (score_of(slot, arm, measure, trained=trained) for slot in slots)
    return [score for score in found if score is not None]


@dataclass(frozen=True)
class Comparison:
    """An arm against A on a primary measure, in points; p is Holm's, nan where it is not tested."""

    arm: str
    measure: str
    difference: Difference
    p: float
    text: str
    decided: bool


def compare(slots: Sequence[Slot]) -> list[Comparison]:
    """Return the comparisons that the number of seeds allows, decided or not."""
    own = complete(slots)
    pairs = pairs_of(len(own))
    found = [difference(scores(own, arm, name), scores(own, "A", name)).in_points for arm, name in pairs]
    adjusted = holm([one.p for one in found])
    comparisons = []
    for (arm, name), one, p in zip(pairs, found, adjusted, strict=True):
        obstacle = obstacle_to(slots, own, arm, name, one)
        decided = p < SIGNIFICANT and obstacle is None
        comparisons.append(Comparison(arm, name, one, p, said(name, one, p, obstacle), decided))
    return comparisons


def obstacle_to(slots: Sequence[Slot], own: Sequence[Slot], arm: str, measure: str, one: Difference) -> str | None:
    """Return the reason that leaves a difference undecided whatever its p; None if there is none."""
    unresolved = {name for slot in slots for name in slot.card.get("unresolved", ())} & {"A", arm}
    if unresolved:
        return f"unresolved: the best rate of {' and '.join(sorted(unresolved))} is the lowest or highest tried"
    floor, level = baseline(slots, measure), mean(scores(own, "A", measure))
    if floor is None:
        return f"silent: {BASELINE} was not measured"
    if level <= floor:
        return f"silent: A ({level:.1f}) is not above a {BASELINE} ({floor:.1f})"
    better = arm if one.value > 0 else "A"
    starts = scores(own, better, measure, trained=False)
    if len(starts) < len(own):  # not of every seed: those that there are, slot 1's among them
        starts = scores(slots, better, measure, trained=False)
    if not starts:
        return f"not decided: the start of {better} was not measured"
    if mean(scores(own, better, measure)) <= mean(starts):
        return f"not decided: {better} is not above its own start ({mean(starts):.1f})"
    return None


def said(measure: str, one: Difference, p: float, obstacle: str | None) -> str:
    """The sentence of a comparison."""
    far = max(abs(one.low), abs(one.high))
    absent = one.high < HALF_OF_PAPER[measure]
    more = f"; the paper's effect is not here (above by less than {one.high:.1f})" if absent else ""
    if obstacle is not None:
        return obstacle
    if math.isnan(p):
        return f"not tested: {one.why}"
    if p < SIGNIFICANT:
        return f"{'better' if one.value > 0 else 'worse'} by {abs(one.value):.1f} points{more if one.value < 0 else ''}"
    return f"smaller than {far:.1f} points{more}"


def mean(estimates: Sequence[Estimate]) -> float:
    """Mean of the scores, in percent; nan of none."""
    return 100 * statistics.mean(score.value for score in estimates) if estimates else math.nan


# --- secondary measures ------------------------------------------------------------------------------


def _mean_of(by_block: Mapping[int, RecordedRow], blocks: range) -> float | None:
    values = [entry.row.value for block, entry in by_block.items() if block in blocks]
    return statistics.mean(values) if values else None


def _points(score: Estimate | None) -> float | None:
    return None if score is None else 100 * score.value


def _last(by_block: Mapping[int, RecordedRow]) -> float | None:
    return by_block[max(by_block)].row.value if by_block else None


def _neighbours(entries: Entries) -> dict[int, RecordedRow]:
    return {int(e.row.block): e for e in entries if e.row.task == "knn" and e.row.block.isdigit()}


SECONDARY: Mapping[str, Callable[[Entries], float | None]] = MappingProxyType(
    {
        "P1, CorLoc, keys, cross-fitted": lambda entries: _points(PRIMARY["P1"].of(entries)),
        "CorLoc, keys, mean of blocks 5-12": lambda entries: _mean_of(cuts(entries), LATE_MEAN),
        "CorLoc, keys, last block": lambda entries: _last(cuts(entries)),
        "CorLoc, keys, positions removed, cross-fitted":
            lambda entries: _points(cross_fitted(cuts(entries, positions="mean"))),
        "CorLoc, outputs, cross-fitted": lambda entries: _points(cross_fitted(cuts(entries, "out"))),
        "P2, mIoU, VOC2012 sample, by held-out images": lambda entries: _points(PRIMARY["P2"].of(entries)),
        "mIoU, VOC2012 sample, mean of blocks 5-12": lambda entries: _mean_of(probes(entries, "voc_mini"), LATE_MEAN),
        "mIoU, VOC2012 sample, last block": lambda entries: _last(probes(entries, "voc_mini")),
        "mIoU, scenes, by held-out images": lambda entries: _points(by_heldout(probes(entries, "scenes"))),
        "k-NN, last block": lambda entries: _last(_neighbours(entries)),
        "k-NN, mean of blocks 5-12": lambda entries: _mean_of(_neighbours(entries), LATE_MEAN),
    }
)  # fmt: skip
"""All that is printed of every arm, in percent."""


def shares(entries: Entries, field: str) -> dict[int, float]:
    """Percent of degenerate or complete graphs (``field`` of the rows) by block, by keys."""
    return {
        block: 100 * value for block, entry in cuts(entries).items() if (value := getattr(entry.row, field)) is not None
    }
