"""All pairs of a leaderboard's networks, decided together; those with the first network are compared in full.

A pair whose networks have no records of images, no epoch 0 and one training each is only a difference of two numbers
with errors: all such pairs are reckoned at once, with the same numbers as one by one, for a table of 120 networks has
7,140 of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from dinoskip.decisions.comparing import ComparedPair, NetworkScores, Verdict, compared_pair
from dinoskip.results.estimates import SIGNIFICANT, unpaired_pairs
from dinoskip.results.statistics import F64, holm

Places = tuple[int, int]


@dataclass(frozen=True, eq=False)
class DecidedPairs:
    """Verdicts on all pairs of networks that have an order.

    ``signs`` int8 (n, n): above the diagonal 1 where the network of the row is better than that of the column, -1 where
    it is worse, 0 where that is undecided. ``with_first`` are the comparisons of the first network with others, by
    their places; pairs whose uncertainty cannot be estimated are absent.
    """

    signs: NDArray[np.int8]
    with_first: dict[int, tuple[ComparedPair, Verdict]]

    def places(self, at: int) -> Places:
        """The first and last place that a network may have."""
        above, below = int((self.signs[:at, at] > 0).sum()), int((self.signs[at, at + 1 :] > 0).sum())
        return 1 + above, len(self.signs) - below


def decide_all(sides: Sequence[NetworkScores]) -> DecidedPairs:
    """Compare all networks, corrected for the number of comparisons (Holm)."""
    pairs = list(combinations(range(len(sides)), 2))
    plain = [_is_plain(side) for side in sides]
    compared = {
        (one, other): compared_pair(sides[one], sides[other])
        for one, other in pairs
        if not (plain[one] and plain[other])
    }
    whole = {places: pair for places, pair in compared.items() if pair is not None}  # None: without errors
    values, p, why, known = _numbers(sides, pairs, whole)
    adjusted = np.full(len(pairs), math.nan)
    adjusted[known] = holm(p[known].tolist())
    tested = int((~np.isnan(adjusted)).sum())
    signs = np.where(adjusted < SIGNIFICANT, np.sign(values), 0).astype(np.int8)
    decided = np.zeros((len(sides), len(sides)), np.int8)
    with_first: dict[int, tuple[ComparedPair, Verdict]] = {}
    for number, (one, other) in enumerate(pairs):
        if not known[number]:
            continue
        if one == 0:
            pair = whole.get((one, other)) or compared_pair(sides[one], sides[other])
            assert pair is not None
            verdict = pair.verdict(int(signs[number]), float(adjusted[number]))
            with_first[other] = pair, replace(verdict, comparisons=tested)
            decided[one, other] = verdict.sign
        elif signs[number] and not why[number]:
            pair = whole.get((one, other))
            turned = -signs[number] if sides[one].lowest else signs[number]
            decided[one, other] = (
                turned if pair is None else pair.verdict(int(signs[number]), float(adjusted[number])).sign
            )
    return DecidedPairs(decided, with_first)


def _is_plain(side: NetworkScores) -> bool:
    return len(side.now) == 1 and not side.before and not side.now[0].ids


def _numbers(
    sides: Sequence[NetworkScores], pairs: Sequence[Places], whole: dict[Places, ComparedPair]
) -> tuple[F64, F64, NDArray[np.bool_], NDArray[np.bool_]]:
    """Differences, p before correction, whether a verdict is ruled out, and whether there is a comparison at all."""
    first, second = (np.array([places[side] for places in pairs], np.int64) for side in (0, 1))
    plain = np.array([_is_plain(side) for side in sides], bool)
    barred = np.array([bool(side.is_shown or side.unresolved) for side in sides], bool)
    dead = np.array([side.is_dead for side in sides], bool)
    values, p, known = np.zeros(len(pairs)), np.full(len(pairs), math.nan), np.zeros(len(pairs), bool)
    numbers = plain[first] & plain[second] if len(pairs) else known
    if numbers.any():
        found = unpaired_pairs([side.now[0].alone for side in sides], first[numbers], second[numbers])
        values[numbers], p[numbers], known[numbers] = found.values, found.p, found.known
    for number, places in enumerate(pairs):
        if (pair := whole.get(places)) is not None:
            values[number], p[number], known[number] = pair.judgement.difference.value, pair.tested.p, True
    ruled_out = barred[first] | barred[second] if len(pairs) else known
    p[ruled_out] = math.nan
    lowest = np.array([side.lowest for side in sides], bool)
    leads = np.where(lowest[first], -values, values) > 0 if len(pairs) else known
    leader_dead = np.where(leads, dead[first], dead[second]) if len(pairs) else known
    return values, p, ruled_out | leader_dead, known
