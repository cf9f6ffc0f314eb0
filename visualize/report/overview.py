"""The report's first screen: networks × measures, each difference with its verdict as one word."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from dinoskip.decisions.comparing import HIGHER, LOWER
from dinoskip.decisions.wording import signed
from visualize.report.answer import SAME_WEIGHTS, Answer, AnswerLine, Measured
from visualize.rows import Benchmark, StudyVariant
from visualize.tables import NOT_RUN, TextTable

NOT_SEPARATING = "inconclusive"
_LEGEND = (
    "Each cell: difference from the first network, in points. Undecided: the difference is not significant. "
    "Inconclusive: no trained network is clearly above every baseline and every untrained network on this metric."
)
_OF_ONE_EACH = (
    " Higher and lower: significant over the images, with one training of each network; another seed may differ."
)


@dataclass(frozen=True)
class MeasuredCell:
    """One network on one measure: a verdict (``kind``: a class of the style sheet) and a number, as text."""

    kind: str
    word: str
    number: str = ""


@dataclass(frozen=True)
class Overview:
    """Networks with the one that they are compared with first, by measure."""

    measures: tuple[str, ...]
    lines: tuple[tuple[str, tuple[MeasuredCell, ...]], ...]


def overviews(pairs: Sequence[Answer], silent: Collection[Benchmark]) -> list[Overview]:
    """A grid for each network that others are compared with; one network alone has its values."""
    references: dict[str, list[Answer]] = {}
    for pair in pairs:
        references.setdefault(pair.second or pair.first, []).append(pair)
    return [
        _overview(reference, pairs, silent) for reference, pairs in references.items() if any(a.lines for a in pairs)
    ]


def legend(views: Sequence[Overview]) -> str:
    """Return the meaning of the words in the cells."""
    kinds = {cell.kind for view in views for _, cells in view.lines for cell in cells}
    return _LEGEND + (_OF_ONE_EACH if kinds & {HIGHER, LOWER} else "")


def _overview(reference: str, pairs: Sequence[Answer], silent: Collection[Benchmark]) -> Overview:
    measures = list(dict.fromkeys(line.benchmark for pair in pairs for line in pair.lines))
    measures.sort(key=lambda benchmark: benchmark in silent)
    levels: dict[Benchmark, Measured] = {}
    for line in (line for pair in pairs for line in pair.lines):
        side = line.second if any(pair.second for pair in pairs) else line.first
        if side is not None:
            levels.setdefault(line.benchmark, side)
    first = tuple(
        MeasuredCell("value", _with_failure(levels[key].blocks_said, levels[key]), f"{levels[key].value:.1f}")
        if key in levels
        else MeasuredCell("absent", NOT_RUN)
        for key in measures
    )
    lines = [(reference, first)]
    for pair in (pair for pair in pairs if pair.second):
        known = {line.benchmark: line for line in pair.lines}
        lines.append((pair.first, tuple(_cell(known.get(key), key in silent) for key in measures)))
    return Overview(tuple(key.label for key in measures), tuple(lines))


def _cell(line: AnswerLine | None, silent: bool) -> MeasuredCell:
    if line is None or line.first is None or line.second is None:
        return MeasuredCell("absent", NOT_RUN)
    if line.difference is None:
        return MeasuredCell("undecided", "undecided", signed(line.first.value - line.second.value))
    number = signed(line.difference.value)
    if line.why == SAME_WEIGHTS:
        return MeasuredCell("same", SAME_WEIGHTS)
    if silent:
        return MeasuredCell("silent", _with_failure(NOT_SEPARATING, line.first), number)
    if line.first.is_dead:
        return MeasuredCell(line.verdict, f"{line.said}, network collapsed", number)
    return MeasuredCell(line.verdict, _with_failure(line.said, line.first), number)


def _with_failure(word: str, side: Measured) -> str:
    """``better, affinity graph degenerate at τ = 0.2``: a word, and how the method failed where it did."""
    failed = side.failed_there.partition(" (")[0]
    return f"{word}, {failed}" if failed else word


def described(variants: Sequence[StudyVariant]) -> Mapping[str, str]:
    """``vit_small_patch16 (skip False), skipless, soap``: what a network's name stands for, by name and family."""
    names: dict[str, str] = {}
    for variant in variants:
        parts = [
            str(variant.settings[key]) for key in ("model", "initialisation", "optimizer") if key in variant.settings
        ]
        for name in filter(None, (variant.name, variant.family)):
            names.setdefault(name, ", ".join(parts))
    return names


def overview_tables(views: Sequence[Overview]) -> list[TextTable]:
    """Write overviews as text tables."""
    tables = []
    for view in views:
        rows = [
            [name, *(" ".join(filter(None, (cell.word, cell.number))) for cell in cells)] for name, cells in view.lines
        ]
        tables.append(TextTable("overview", "", [[("network", 1), *((m, 1) for m in view.measures)]], rows, 1))
    return tables
