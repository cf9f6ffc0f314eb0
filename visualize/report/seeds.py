"""Differences over seeds of training: means, their spread, and a verdict by a rule that was fixed beforehand."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import stdtrit

from visualize.comparison import Score, Scores, signed
from visualize.report.answer import BETTER, UNDECIDED, WORSE
from visualize.rows import Benchmark, StudyVariant
from visualize.tables import TextTable, mean_deviation

FACTOR = 2.0
"""A difference of means counts from so many standard deviations over seeds on."""


@dataclass(frozen=True)
class OverSeeds:
    """One network on one benchmark, a value a seed: at the block chosen without the reported images, and the last.

    ``before`` is the first of them at epoch 0; empty where that was not evaluated. In percent.
    """

    chosen: tuple[float, ...]
    last: tuple[float, ...]
    before: tuple[float, ...] = ()

    @property
    def mean(self) -> float:
        """Over seeds."""
        return statistics.mean(self.chosen)

    @property
    def gain(self) -> float:
        """Over its own start; infinite where that is not known."""
        return self.mean - statistics.mean(self.before) if self.before else math.inf


@dataclass(frozen=True)
class SeedsLine:
    """Two networks, by their names without the seed, on one benchmark."""

    first: str
    second: str
    benchmark: Benchmark
    one: OverSeeds
    two: OverSeeds

    @property
    def difference(self) -> float:
        """Of the means."""
        return self.one.mean - self.two.mean

    @property
    def higher(self) -> OverSeeds:
        """The network of the higher mean."""
        return self.one if self.difference > 0 else self.two

    @property
    def deviation(self) -> float:
        """Standard deviation over seeds, pooled over both networks; NaN with one seed each."""
        parts = [(len(side.chosen) - 1, statistics.variance(side.chosen)) for side in (self.one, self.two)
                 if len(side.chosen) > 1]  # fmt: skip
        degrees = sum(count for count, _ in parts)
        return math.sqrt(sum(count * value for count, value in parts) / degrees) if degrees else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """Of the difference of means, 95 %: Student's, with the pooled deviation; NaN with one seed each."""
        sizes = [len(side.chosen) for side in (self.one, self.two)]
        error = self.deviation * math.sqrt(sum(1 / size for size in sizes))
        half = error * float(stdtrit(max(1, sum(sizes) - len(sizes)), 0.975))
        return self.difference - half, self.difference + half

    @property
    def verdict(self) -> str:
        """Of the first: better or worse if the difference of means exceeds :data:`FACTOR` deviations over seeds.

        And if the better of the two is above its own start. Else undecided.
        """
        if not abs(self.difference) > FACTOR * self.deviation or self.higher.gain <= 0:
            return UNDECIDED
        return BETTER if self.difference > 0 else WORSE


def over_seeds(variants: Sequence[StudyVariant], scores: Scores) -> list[SeedsLine]:
    """Every network against the first of its optimizer and depth, on every benchmark that both have.

    The first of each optimizer and depth is held against the first of all. Empty if every network has one seed.
    """
    families: dict[str, list[StudyVariant]] = {}
    for variant in variants:
        if variant.family:
            families.setdefault(variant.family, []).append(variant)
    if not any(len(own) > 1 for own in families.values()):
        return []
    kinds: dict[tuple[str, int], str] = {}
    lines = []
    for name, own in families.items():
        first = kinds.setdefault((own[0].optimizer, own[0].depth), name)
        other = first if first != name else next(iter(families))
        for benchmark in scores.benchmarks if other != name else ():
            one, two = (_values([each.name for each in families[side]], benchmark, scores) for side in (name, other))
            if one.chosen and two.chosen:
                lines.append(SeedsLine(name, other, benchmark, one, two))
    return lines


def _values(names: Sequence[str], benchmark: Benchmark, scores: Scores) -> OverSeeds:
    ends = {name: scores.last_epoch(name, benchmark) for name in names}
    return OverSeeds(
        _numbers([scores.chosen(scores.rows(name, benchmark, end)) for name, end in ends.items()]),
        _numbers([scores.last(scores.rows(name, benchmark, end)) for name, end in ends.items()]),
        _numbers([scores.chosen(scores.rows(name, benchmark, 0)) for name, end in ends.items() if end > 0]),
    )


def _numbers(scored: Sequence[Score | None]) -> tuple[float, ...]:
    return tuple(score.value for score in scored if score is not None)


def seeds_verdicts(lines: Sequence[SeedsLine]) -> list[str]:
    """One sentence a pair: what the first is better, worse and undecided in, with differences and intervals."""
    pairs: dict[tuple[str, str], dict[str, list[str]]] = {}
    for line in lines:
        own = pairs.setdefault((line.first, line.second), {BETTER: [], WORSE: [], UNDECIDED: []})
        higher = line.first if line.higher is line.one else line.second
        why = f", {higher} not above its start" if line.higher.gain <= 0 else ""
        own[line.verdict].append(f"{line.benchmark.label} ({_difference(line)}{why})")
    return [
        f"{first} against {second}: "
        + "; ".join(f"{word} in {', '.join(own[word])}" for word in own if own[word])
        + "."
        for (first, second), own in pairs.items()
    ]


def _difference(line: SeedsLine) -> str:
    """``−5.0 [−7.3, −2.7]``; without the interval where each network has one seed."""
    low, high = line.interval
    interval = "" if math.isnan(low) else f" [{signed(low)}, {signed(high)}]"
    return signed(line.difference) + interval


def seeds_table(lines: Sequence[SeedsLine]) -> TextTable | None:
    """A line a pair and benchmark; None without several seeds."""
    if not lines:
        return None
    rules, body, seen = set[int](), list[list[str]](), ""
    for line in lines:
        names = f"{line.first} − {line.second}"
        if names != seen:
            rules.add(len(body))
            seen = names
        cells = [mean_deviation(line.one.chosen), mean_deviation(line.two.chosen), _difference(line),
                 "–" if math.isnan(line.deviation) else f"{line.deviation:.1f}"]  # fmt: skip
        starts = [mean_deviation(side.before) for side in (line.one, line.two)]
        ends = [mean_deviation(side.last) for side in (line.one, line.two)]
        body.append([names, line.benchmark.label, *cells, line.verdict, *starts, *ends])
    columns = ("networks", "measure", "first", "second", "difference", "deviation", "the first is", "first before",
               "second before", "first, last block", "second, last block")  # fmt: skip
    notes = [
        "Mean ± standard deviation over seeds of training, at the block chosen without the reported images; deviation "
        "is pooled over both networks, and gives the 95 % interval of the difference (Student's). Better or worse: "
        f"more than {FACTOR:g} deviations apart, the better network above its own start; with two seeds the interval "
        "may include 0 all the same.",
    ]
    return TextTable("seeds", "Means over seeds", [[(c, 1) for c in columns]], body, 2, frozenset(rules), notes)
