"""Which measures separate networks at all: the best trained network against the trivial rule and untrained networks.

A measure separates if some trained network is above the best rule that looks at no image **and** above every network
before training, its own start included: the largest of these one-sided p-values, corrected over all networks and
measures of the page (Holm), is below 0.05. Read points at which every network has the same numbers count as one. Where
neither a rule nor an untrained network was measured it is taken on trust, and said so. A measure that does not separate
decides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

from dinoskip.estimates import SIGNIFICANT, Difference, difference, gain_of, one_sided
from dinoskip.results import EvalResult
from dinoskip.statistics import holm
from visualize.comparison import Scores, aligned
from visualize.report.answer import Measured, measured, without_place
from visualize.rows import Benchmark, StudyVariant, families

NOT_TESTED = "neither a trivial rule nor an untrained network was measured"


@dataclass(frozen=True)
class Separation:
    """A measure: whether it separates (None: not tested), and the numbers that say so, in a line."""

    benchmark: Benchmark
    separates: bool | None
    text: str


def separations(variants: Sequence[StudyVariant], scores: Scores, baselines: Sequence[EvalResult]) -> list[Separation]:
    """Every measure of a study."""
    networks = families(variants)
    every: list[tuple[Benchmark, list[Measured], EvalResult | None, list[float]]] = []
    for benchmark in scores.benchmarks:
        sides = [side for name, own in networks.items() if (side := measured(name, own, benchmark, scores))]
        trivial = max((row for row in baselines if benchmark.is_of(row)), key=lambda row: row.value, default=None)
        trained = [side for side in sides if side.before or trivial is not None]
        chances = [_p_of_nothing(side, sides, trivial, scores) for side in trained]
        every.append((benchmark, sides, trivial, chances))
    distinct: dict[Hashable, list[float]] = {}
    for benchmark, sides, _, chances in every:
        distinct.setdefault(_test(benchmark, sides), chances)
    adjusted = iter(holm([p for chances in distinct.values() for p in chances]))
    of_tests = {test: [next(adjusted) for _ in chances] for test, chances in distinct.items()}
    found = []
    for benchmark, sides, trivial, chances in every:
        corrected = of_tests[_test(benchmark, sides)]
        tested = not all(map(math.isnan, corrected))
        separates = any(p < SIGNIFICANT for p in corrected) if tested else None
        found.append(Separation(benchmark, separates, _text(benchmark, sides, trivial, chances)))
    return found


def _test(benchmark: Benchmark, sides: Sequence[Measured]) -> Hashable:
    """What is tested: the measure without the read point, and all numbers of all networks."""
    measure = replace(benchmark, setting=without_place(benchmark.setting))
    return measure, tuple((side.name, side.read) for side in sides)


def speechless(found: Sequence[Separation]) -> dict[Benchmark, str]:
    """Measures that do not separate, and what a line of theirs says instead of a verdict."""
    return {one.benchmark: "this measure separates nothing here" for one in found if one.separates is False}


def _p_of_nothing(side: Measured, sides: Sequence[Measured], trivial: EvalResult | None, scores: Scores) -> float:
    """p of a network not being above all that has not learnt: the largest of all."""
    against: list[Difference] = []
    if trivial is not None:
        now, rule = aligned(side.now, [scores.of(trivial)])
        against.append(difference([score - rule[0] for score in now]))
    for other in (one for one in sides if one.before):
        now, before = aligned(side.now, other.before)
        gain = gain_of(now, before) if other is side else difference(now, before)
        against += [gain] if gain is not None else []
    chances = [one_sided(one) for one in against]
    return math.nan if not chances or any(map(math.isnan, chances)) else max(chances)


def _text(benchmark: Benchmark, sides: Sequence[Measured], trivial: EvalResult | None, chances: Sequence[float]) -> str:
    """``mIoU, voc val: best trained 6.6 (mixing), trivial rule 3.4, untrained at most 4.0 (mixing)``."""
    if not sides:
        return benchmark.label
    best = max(sides, key=lambda side: side.value)
    parts = [f"best trained {best.value:.1f} ({best.name})"]
    parts += [] if trivial is None else [f"{trivial.model.removeprefix('baseline: ')} {trivial.value:.1f}"]
    begun = [(sum(one.value for one in side.before) / len(side.before), side.name) for side in sides if side.before]
    parts += [f"untrained at most {max(begun)[0]:.1f} ({max(begun)[1]})"] if begun else []
    parts += [] if chances else [NOT_TESTED]
    return f"{benchmark.label}: {', '.join(parts)}"


def separation_said(found: Sequence[Separation]) -> list[str]:
    """Which measures separate, which do not, and which were not tested: a sentence each, of those that there are."""
    heads = {True: "Separate networks", False: "Separate nothing here, and decide nothing", None: "Not tested"}
    listed = {key: [one.text for one in found if one.separates is key] for key in heads}
    return [f"{head}: {'; '.join(listed[key])}." for key, head in heads.items() if listed[key]]
