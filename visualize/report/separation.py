"""Measures that separate networks: the best trained network against the best baseline and untrained networks.

A measure separates if some trained network is above the best rule that looks at no image **and** above every network
before training, its own start included: the largest of these one-sided p-values, corrected over all networks and
measures of the page (Holm), is below 0.05; a number that was chosen on the images shown is not tested. Read points at
which every network has the same numbers count as one. A measure for which nothing was tested is taken on trust, and
the page says so. A measure that does not separate decides nothing.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from dinoskip.decisions.comparing import above_rule, above_start, chance_of_nothing, separating
from dinoskip.decisions.wording import points
from dinoskip.results.estimates import Difference
from dinoskip.results.rows import EvalResult
from visualize.comparison import Scores
from visualize.report.answer import Measured, measured, without_place
from visualize.rows import Benchmark, StudyVariant, families

NOT_TESTED = "neither a baseline nor an untrained network was measured"


@dataclass(frozen=True)
class Separation:
    """A measure: whether it separates (None: not tested), and the numbers that say so, in a line."""

    benchmark: Benchmark
    separates: bool | None
    text: str


def separations(variants: Sequence[StudyVariant], scores: Scores, baselines: Sequence[EvalResult]) -> list[Separation]:
    """Every measure of a study."""
    networks = families(variants)
    every: list[tuple[Benchmark, list[Measured], list[float], str]] = []
    for benchmark in scores.benchmarks:
        sides = [side for name, variants in networks.items() if (side := measured(name, variants, benchmark, scores))]
        trivial = benchmark.baseline(baselines)
        above = {side.name: _above(side, sides, trivial, scores) for side in sides if side.before or trivial}
        chances = [chance_of_nothing(side, list(above[side.name].values())) for side in sides if side.name in above]
        every.append((benchmark, sides, chances, _text(benchmark, sides, trivial, above)))
    tests = [_test(benchmark, sides) for benchmark, sides, _, _ in every]
    found = separating([chances for _, _, chances, _ in every], tests)
    return [
        Separation(benchmark, separates, text) for (benchmark, *_, text), separates in zip(every, found, strict=True)
    ]


def _test(benchmark: Benchmark, sides: Sequence[Measured]) -> Hashable:
    """Return the key of a test: the measure without the read point, and all numbers of all networks."""
    measure = replace(benchmark, setting=without_place(benchmark.setting))
    return measure, tuple((side.name, side.read) for side in sides)


def speechless(separations: Sequence[Separation]) -> dict[Benchmark, str]:
    """Measures that do not separate, and what a line of theirs says instead of a verdict."""
    return {
        sep.benchmark: "inconclusive: no network is clearly above the baselines"
        for sep in separations
        if sep.separates is False
    }


_RULE = "trivial rule"


def _above(
    side: Measured, sides: Sequence[Measured], trivial: EvalResult | None, scores: Scores
) -> dict[str, Difference]:
    """Return the gain of a network over the trivial rule, and over every network before training, by their names."""
    above: dict[str, Difference] = {}
    if trivial is not None:
        above[_RULE] = above_rule(side, scores.of(trivial))
    for second in (first for first in sides if first.before):
        gain = above_start(side, second)
        above |= {second.name: gain} if gain is not None else {}
    return above


def _text(
    benchmark: Benchmark,
    sides: Sequence[Measured],
    trivial: EvalResult | None,
    above: Mapping[str, Mapping[str, Difference]],
) -> str:
    """``mIoU, voc val: best trained 6.6 (mixing), +3.2 [+1.9, +4.5] against the majority class (3.4), ...``."""
    if not sides:
        return benchmark.label
    best = max(sides, key=lambda side: side.value)
    apart = {name: points(values.in_points) for name, values in above.get(best.name, {}).items()}
    parts = [f"best trained {best.value:.1f} ({best.name})"]
    if trivial is not None:
        parts.append(f"{apart[_RULE]} against the {trivial.rule} ({trivial.value:.1f})")
    if begun := [
        (sum(score.value for score in side.before) / len(side.before), side.name) for side in sides if side.before
    ]:
        value, name = max(begun)
        parts.append(f"{apart.get(name, '')} against the best untrained one ({value:.1f}, {name})".strip())
    return f"{benchmark.label}: {', '.join(parts if above else [*parts, NOT_TESTED])}"


def separation_said(separations: Sequence[Separation]) -> list[str]:
    """Return a sentence each on measures that separate, that do not, and that were not tested, where there are any."""
    heads = {
        True: "Metrics on which some trained network is above every baseline and untrained network",
        False: "Inconclusive metrics: no trained network is above these",
        None: "Metrics for which this was not tested",
    }
    listed = {key: [separation.text for separation in separations if separation.separates is key] for key in heads}
    return [f"{head}: {'; '.join(listed[key])}." for key, head in heads.items() if listed[key]]
