"""Two networks compared by their scores: image by image where both have records, over seeds of training, and as a page.

Of two networks one is better where the difference **and** its gain over its own start hold, p below 0.05 after
correction for all comparisons of the page (Holm), and

- the block, learning rate and whatever else was chosen was not chosen on the images shown, of either
  (:data:`dinoskip.results.rows.SELECTIONS`), and the learning rate of both is resolved: what fails this is not tested,
  and no part of the correction;
- it is not dead: tokens alike, graphs complete, and no gain over its own start that is known.

With one training each only the images are random, and another training may turn the difference: the word is then
*higher* or *lower*, not *better* or *worse*, and p takes trainings to differ by luck
(:mod:`dinoskip.results.estimates`)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

from dinoskip.decisions.choosing import Score
from dinoskip.decisions.wording import signed
from dinoskip.results.estimates import (
    ONE_EACH,
    SIGNIFICANT,
    Difference,
    Estimate,
    Judgement,
    decided,
    difference,
    gain_of,
    least_gap,
    one_sided,
)
from dinoskip.results.rows import SHOWN
from dinoskip.results.statistics import holm
from dinoskip.settings.tasks import is_error

BETTER, WORSE, UNDECIDED = "better", "worse", "undecided"
HIGHER, LOWER = "higher", "lower"
FAR = 5.0
"""Deviations over seeds: networks so far apart hardly overlap, and a page that would not tell them apart says so."""
WITHIN_LUCK = f"{ONE_EACH}: another seed may differ as much"


@dataclass(frozen=True, eq=False)
class NetworkScores:
    """A network's numbers on a benchmark, a score a seed: after training, and before it of the same seeds.

    ``before`` is empty where not all were evaluated at epoch 0; ``unresolved`` says why its learning rate is not known
    to be the best.
    """

    name: str
    now: tuple[Score, ...]
    before: tuple[Score, ...] = ()
    unresolved: str = ""

    @property
    def value(self) -> float:
        """Mean over seeds, in the unit of the rows."""
        return statistics.mean(score.value for score in self.now)

    @property
    def blocks(self) -> str:
        """``b9``, of several seeds ``b9 b8``."""
        return " ".join(dict.fromkeys(score.block for score in self.now))

    @property
    def is_shown(self) -> bool:
        """Whether any of its numbers was chosen on the images shown: an upper estimate."""
        return any(score.selected == SHOWN for score in self.now)

    @property
    def lowest(self) -> bool:
        """Whether a lower number is the better one."""
        return is_error(self.now[0].row.metric)

    @property
    def gain(self) -> Difference | None:
        """Improvement over the network's own initialisation, paired by seed; None if a seed was not scored there."""
        now, before = aligned(self.now, self.before)
        return _gain(now, before, self.lowest)

    @property
    def is_dead(self) -> bool:
        """Whether tokens are alike and graphs complete, and no gain over its own start is known; it never wins."""
        if not any(score.lifeless for score in self.now):
            return False
        gain = self.gain
        return gain is None or not gain.low > 0


@dataclass(frozen=True)
class Verdict:
    """Verdict of one comparison: ``sign`` is 1 where the first network is better, -1 where it is worse, else 0.

    ``p`` is corrected for the ``comparisons`` of the page that were tested, nan where this one was not; ``why`` is
    the reason, other than p, that leaves it undecided. ``one_each``: both networks were trained once; ``lowest``: the
    lower number is the better one.
    """

    sign: int
    p: float
    why: str = ""
    one_each: bool = False
    lowest: bool = False
    comparisons: int = 0

    @property
    def word(self) -> str:
        """``better``, ``worse`` or ``undecided``; of one training each ``higher`` or ``lower``, as the numbers are."""
        if self.sign == 0:
            return UNDECIDED
        if self.one_each:
            return HIGHER if (self.sign > 0) is not self.lowest else LOWER
        return BETTER if self.sign > 0 else WORSE

    @property
    def said(self) -> str:
        """``better``, ``higher, one training each``, ``undecided``."""
        return f"{self.word}, {ONE_EACH}" if self.sign and self.one_each else self.word

    @property
    def certainty(self) -> str:
        """``better, p = 0.012``, or ``undecided: `` and why."""
        if self.why:
            return f"{self.said}: {self.why}"
        # As p is usually printed: digits of smaller ones say little.
        return f"{self.said}, p {f'= {self.p:.2g}' if self.p >= 0.001 else '< 0.001'}"


@dataclass(frozen=True, eq=False)
class ComparedPair:
    """Two networks on a benchmark, and how far they are apart: ``first`` minus ``second``, as their numbers are."""

    first: NetworkScores
    second: NetworkScores
    judgement: Judgement

    @property
    def lowest(self) -> bool:
        """Whether the lower number is the better one."""
        return self.first.lowest

    @property
    def direction(self) -> int:
        """1 where the first network has the better number, -1 where the second has, 0 where they are equal."""
        value = self.judgement.difference.value * (-1 if self.lowest else 1)
        return (value > 0) - (value < 0)

    @property
    def leader(self) -> NetworkScores:
        """The network of the better number; of equal ones the second."""
        return self.first if self.direction > 0 else self.second

    @property
    def one_each(self) -> bool:
        """Whether both networks were trained once."""
        return len(self.first.now) == len(self.second.now) == 1

    @property
    def seeds(self) -> int:
        """Seeds of training of the network that has fewer."""
        return min(len(self.first.now), len(self.second.now))

    @property
    def unresolved(self) -> str:
        """``rate of skip unresolved``, of the networks whose learning rate is not; nothing where all are."""
        return unresolved_rates([self.first, self.second])

    @property
    def barred(self) -> str:
        """Reason why there is nothing to test, whatever the numbers are; empty if there is something to test."""
        shown = dict.fromkeys(side.name for side in (self.first, self.second) if side.is_shown)
        return self.unresolved or (f"chosen on the images shown: {' and '.join(shown)}" if shown else "")

    @property
    def tested(self) -> Judgement:
        """The judgement, without p where there is nothing to test."""
        if not self.barred:
            return self.judgement
        return replace(self.judgement, difference=replace(self.judgement.difference, p=math.nan, with_luck=math.nan))

    def verdict(self, sign: int, p: float, silent: str = "") -> Verdict:
        """The verdict by the sign of the difference that counts, and p, both corrected for the page.

        ``silent`` is why the benchmark decides nothing.
        """
        apart, gain, leader = self.judgement.difference, self.judgement.gain, self.leader
        why = self.barred or silent or apart.why
        if not why and leader.is_dead:
            why = f"{leader.name} has collapsed"
        if not why and sign == 0 and gain is not None and self.judgement.p > apart.of_networks:
            why = f"{leader.name} is not clearly above its own initialisation ({signed(100 * gain.value)})"
        if not why and sign == 0 and apart.within_luck:
            why = WITHIN_LUCK
        better = 0 if why else -sign if self.lowest else sign
        return Verdict(better, p, why, self.one_each, self.lowest)


def unresolved_rates(sides: Sequence[NetworkScores]) -> str:
    """``rate of skip unresolved``, of the networks whose learning rate is not; nothing where all are."""
    names = list(dict.fromkeys(side.name for side in sides if side.unresolved))
    return f"rate of {' and '.join(names)} unresolved" if names else ""


def compared_pair(first: NetworkScores, second: NetworkScores, margin: float = 0.0) -> ComparedPair | None:
    """Compare the first network plus ``margin`` percent points with the second, and the better one with its own start.

    None where neither records nor intervals nor seeds say how sure the difference is.
    """
    now, other, before, other_before = aligned(first.now, second.now, first.before, second.before)
    moved = [replace(score, value=score.value + margin / 100) for score in now] if margin else now
    gap = difference(moved, other)
    if len(now) == len(other) == 1 and not gap.n and math.isnan(gap.low):
        return None
    pair = ComparedPair(first, second, Judgement(gap))
    after, start = (now, before) if pair.leader is first else (other, other_before)
    return ComparedPair(first, second, Judgement(gap, _gain(after, start, pair.lowest)))


def _gain(after: Sequence[Estimate], before: Sequence[Estimate], lowest: bool) -> Difference | None:
    return gain_of(before, after) if lowest else gain_of(after, before)


def aligned(*sides: Sequence[Score]) -> list[list[Estimate]]:
    """The estimates of several scores: by their images where all are of the same, else each alone."""
    every = [score for side in sides for score in side]
    shapes = {score.estimate.parts.shape for score in every}
    same = len({score.ids for score in every}) == 1 and len(shapes) == 1 and every[0].ids
    return [[score.estimate if same else score.alone for score in side] for side in sides]


def decide(pairs: Sequence[ComparedPair], keys: Sequence[Hashable] = (), silent: Sequence[str] = ()) -> list[Verdict]:
    """Decide all comparisons of a page, corrected for their number (Holm).

    Pairs of the same one of ``keys`` are of the same numbers and count as one comparison. ``silent`` says of each pair
    why its benchmark decides nothing; such a pair counts in the correction, for that was read from the numbers.
    """
    keys = keys or range(len(pairs))
    distinct: dict[Hashable, Judgement] = {}
    for key, pair in zip(keys, pairs, strict=True):
        distinct.setdefault(key, pair.tested)
    found = dict(zip(distinct, decided(list(distinct.values())), strict=True))
    tested = sum(not math.isnan(p) for _, p in found.values())
    reasons = silent or [""] * len(pairs)
    verdicts = [pair.verdict(*found[key], why) for key, pair, why in zip(keys, pairs, reasons, strict=True)]
    return [replace(verdict, comparisons=tested) for verdict in verdicts]


def low_power(pair: ComparedPair, verdict: Verdict) -> float | None:
    """The gap in deviations over seeds from which on such a pair is decided 8 times in 10.

    None where it is at most :data:`FAR`, where nothing was tested, and of one training each: it has no deviation.
    """
    if pair.one_each or math.isnan(verdict.p):
        return None
    gap = least_gap(pair.seeds, verdict.comparisons)
    return gap if gap > FAR else None


def above_rule(side: NetworkScores, rule: Score) -> Difference:
    """A network minus a rule that has one number for all of its seeds."""
    now, (of_rule,) = aligned(side.now, [rule])
    return difference([score - of_rule for score in now])


def above_start(side: NetworkScores, other: NetworkScores) -> Difference | None:
    """A network minus another one before training, by seed where it is the same one; None without as many starts."""
    now, before = aligned(side.now, other.before)
    return gain_of(now, before) if other is side else difference(now, before)


def chance_of_nothing(side: NetworkScores, above: Sequence[Difference]) -> float:
    """p of a network not being better than all that has not learnt: the largest, one-sided, of these differences.

    nan without any, where one is undecided, and where the network's number was chosen on the images shown.
    """
    chances = [one_sided(apart.turned if side.lowest else apart) for apart in above]
    return math.nan if side.is_shown or not chances or any(map(math.isnan, chances)) else max(chances)


def separating(chances: Sequence[Sequence[float]], keys: Sequence[Hashable]) -> list[bool | None]:
    """Whether any network of each measure is better than all that has not learnt; None where that was not tested.

    ``chances`` has :func:`chance_of_nothing` of the networks of each measure. They are corrected over all networks and
    measures of the page (Holm); measures of the same one of ``keys`` are of the same numbers and count as one.
    """
    distinct: dict[Hashable, Sequence[float]] = {}
    for key, of_measure in zip(keys, chances, strict=True):
        distinct.setdefault(key, of_measure)
    adjusted = iter(holm([p for of_measure in distinct.values() for p in of_measure]))
    corrected = {key: [next(adjusted) for _ in of_measure] for key, of_measure in distinct.items()}
    return [
        None if all(map(math.isnan, corrected[key])) else any(p < SIGNIFICANT for p in corrected[key]) for key in keys
    ]
