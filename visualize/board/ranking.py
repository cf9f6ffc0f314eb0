"""The ranking of a leaderboard: rows that may be ranked together, their order, and refused pairs of settings.

Backbones are ranked together on one task, metric, data set and split in one setting: protocol, resolution, norm, facet,
classes and number of images. Pairs of settings that may not be ranked together are refused with the reason. A
backbone's block is chosen without the images it is reported on, as in the report (:mod:`dinoskip.decisions`).
Differences are paired image by image where both have records of the same images. All pairs of a table are compared, the
higher one also with its own epoch 0 where that stands there, and their p-values adjusted together (Holm), so that it
does not matter that the first is the one that came out highest. A backbone whose learning rate is unresolved, or whose
block was chosen on the images shown, is listed, but its differences are not decided. Each was trained once: places and
verdicts are of these weights, and another training may change them.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

from dinoskip.decisions.all_pairs import decide_all
from dinoskip.decisions.choosing import Score
from dinoskip.decisions.comparing import NetworkScores, Verdict
from dinoskip.results.estimates import Difference
from dinoskip.results.records import ImageRecords
from dinoskip.results.rows import UNKNOWN_EPOCH, EvalResult
from visualize.board.sources import BoardSource
from visualize.comparison import Scores
from visualize.rows import Benchmark, benchmark_key, comparable, values_of

SETTING = ("protocol", "resolution", "norm", "facet", "classes", "n")
Setting = tuple[str | int, ...]


@dataclass(frozen=True, eq=False)
class BoardLine:
    """A backbone in a table: its place (None for a baseline), number, values by block, difference to the first one.

    ``places`` are the first and last that it may have, by the comparisons that are decided. ``unresolved`` says why its
    learning rate is not known to be the best.
    """

    source: str
    row: EvalResult
    rank: int | None
    score: Score
    values: Mapping[str, float]
    difference: Difference | None = None
    decision: Verdict | None = None
    places: tuple[int, int] | None = None
    unresolved: str = ""

    @property
    def p(self) -> float | None:
        """p of the difference to the first one, corrected for all pairs of the table; None where nothing was tested."""
        return None if self.decision is None or math.isnan(self.decision.p) else self.decision.p

    @property
    def verdict(self) -> str:
        """``lower, one training each`` than the first one, or ``undecided``; nothing without a difference."""
        if self.decision is None:
            return ""
        return replace(self.decision, sign=-self.decision.sign).said

    @property
    def how(self) -> str:
        """The block's choice, or the method's failure there; an unresolved learning rate; the reason for no p."""
        rate = f"rate unresolved: {self.unresolved}" if self.unresolved else ""
        few = self.difference.why if self.difference else ""
        return "; ".join(filter(None, (self.score.failed or self.score.how, rate, few)))

    @property
    def backbone(self) -> str:
        """The model, and its epoch where it is known."""
        return _named(self.row)


def _named(row: EvalResult) -> str:
    return row.model + ("" if row.epoch == UNKNOWN_EPOCH else f" epoch {row.epoch}")


@dataclass(frozen=True, eq=False)
class BoardTable:
    """A leaderboard's table: one measure in one setting, backbones best first, then rules that look at no image."""

    label: str
    setting: Mapping[str, str | int]
    lines: tuple[BoardLine, ...]

    @property
    def blocks(self) -> list[str]:
        """Blocks that any of the backbones has: single ones by number, then several together."""
        every = {block for line in self.lines for block in line.values if block}
        return sorted(every, key=lambda block: (not block.isdigit(), int(block) if block.isdigit() else 0, block))


@dataclass(frozen=True)
class RefusedPair:
    """Two settings of one measure that are not ranked together, and in which keys they differ."""

    label: str
    differs: Mapping[str, tuple[str | int, str | int]]

    @property
    def text(self) -> str:
        """``norm: final and layer; facet: out and key``."""
        return "; ".join(f"{key}: {a or 'none'} and {b or 'none'}" for key, (a, b) in self.differs.items())


@dataclass(frozen=True, eq=False)
class Board:
    """The tables, refused pairs, and every row with the name of its source."""

    tables: tuple[BoardTable, ...]
    refused: tuple[RefusedPair, ...]
    sources: Sequence[BoardSource] = field(default_factory=tuple)


def make_board(sources: Sequence[BoardSource]) -> Board:
    """Rank the rows of several sources; rows with a note, of single seeds and of lesser metrics are not ranked."""
    measures: dict[tuple[str, ...], dict[Setting, list[tuple[str, EvalResult]]]] = {}
    records: dict[str, dict[EvalResult, ImageRecords]] = {source.name: source.records for source in sources}
    for source in sources:
        for row in filter(comparable, source.rows):
            settings = measures.setdefault(benchmark_key(row), {})
            settings.setdefault(_setting(row), []).append((source.name, row))
    rates = {source.name: source for source in sources}
    tables, refused = [], []
    for key in sorted(measures):
        label = Benchmark(key[0], key[1], key[2], key[3]).label
        for setting, rows in measures[key].items():
            lines = (*_ranked(rows, records, rates), *_floor(sources, key, setting))
            tables.append(BoardTable(label, dict(zip(SETTING, setting, strict=True)), lines))
        for first, second in combinations(measures[key], 2):
            pairs = zip(SETTING, zip(first, second, strict=True), strict=True)
            refused.append(RefusedPair(label, {name: pair for name, pair in pairs if pair[0] != pair[1]}))
    return Board(tuple(tables), tuple(refused), tuple(sources))


def _setting(row: EvalResult) -> Setting:
    return tuple(getattr(row, name) for name in SETTING)


def _ranked(
    rows: Sequence[tuple[str, EvalResult]],
    records: Mapping[str, Mapping[EvalResult, ImageRecords]],
    sources: Mapping[str, BoardSource],
) -> list[BoardLine]:
    """Backbones of one measure and setting, best first; each is a model at an epoch in a source."""
    backbones: dict[tuple[str, str, int], dict[str, EvalResult]] = {}
    for source, row in rows:
        backbones.setdefault((source, row.model, row.epoch), {})[row.block] = row
    scored: list[tuple[tuple[str, str, int], Score, dict[str, EvalResult]]] = []
    for key, by_block in backbones.items():
        scores = Scores({key[1]: list(records[key[0]]) + list(by_block.values())}, records[key[0]])
        chosen = scores.chosen(by_block) or scores.of(next(iter(by_block.values())))
        scored.append((key, chosen, by_block))
    scored.sort(key=lambda entry: -entry[1].value)
    starts = {(source, model): score for (source, model, epoch), score, _ in scored if epoch == 0}
    sides = []
    for key, score, _ in scored:
        start = starts.get(key[:2]) if key[2] > 0 else None
        rate = sources[key[0]].rate_of(score.row)
        sides.append(NetworkScores(_named(score.row), (score,), (start,) if start else (), rate))
    found = decide_all(sides)
    values = sorted(score.value for _, score, _ in scored)
    lines = []
    for at, ((source, _, _), score, by_block) in enumerate(scored):
        pair, decision = found.with_first.get(at, (None, None))
        rank = 1 + len(values) - bisect_right(values, score.value)
        turned = pair.judgement.difference.in_points.turned if pair else None
        of_blocks, places = values_of(by_block), found.places(at)
        lines.append(
            BoardLine(source, score.row, rank, score, of_blocks, turned, decision, places, sides[at].unresolved)
        )
    return lines


def _floor(sources: Sequence[BoardSource], key: tuple[str, ...], setting: Setting) -> list[BoardLine]:
    """Rules that look at no image, once each, of the same measure, classes and number of images."""
    lines: dict[str, BoardLine] = {}
    for source in sources:
        for row in source.rows:
            if row.is_baseline and benchmark_key(row) == key and _setting(row)[-2:] == setting[-2:]:
                score = Score(row, row.value, ("",), row.low, row.high, "no network")
                lines.setdefault(row.model, BoardLine("", row, None, score, {}))
    return sorted(lines.values(), key=lambda line: -line.score.value)
