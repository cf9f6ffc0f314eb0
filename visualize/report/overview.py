"""The table of the report's first screen: networks × metrics, each score with its block, difference and verdict."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from dinoskip.decisions.comparing import HIGHER, LOWER, UNDECIDED
from dinoskip.decisions.wording import points, signed
from dinoskip.results.rows import EvalResult
from visualize.report.answer import SAME_WEIGHTS, Answer, AnswerLine, Measured, images_said
from visualize.rows import Benchmark
from visualize.tables import NOT_RUN, TextTable

NOT_SEPARATING = "inconclusive"
BASELINE = "best baseline"
_SCORES = "Each cell: the score, in points, and its block."
_DIFFERENCES = " Below: the difference from the first network with its 95 % interval."
_MEANINGS = {
    UNDECIDED: " Undecided: the difference is not significant, or another seed may differ as much.",
    "silent": " Inconclusive: no trained network is clearly above every baseline and every untrained network.",
    HIGHER: " Higher, lower: significant over the images, with one training of each network; another seed may differ.",
}


@dataclass(frozen=True)
class MeasuredCell:
    """One network on one metric, as text: ``value`` where it was read (``at``), ``difference`` and verdict (``word``).

    ``kind`` is a class of the style sheet.
    """

    kind: str
    value: str = ""
    at: str = ""
    difference: str = ""
    word: str = ""


@dataclass(frozen=True)
class Overview:
    """Networks with the one that they are compared with first, by metric; the last line is the best baseline's."""

    measures: tuple[str, ...]
    lines: tuple[tuple[str, tuple[MeasuredCell, ...]], ...]


def overviews(pairs: Sequence[Answer], silent: Collection[Benchmark], others: Sequence[Answer] = ()) -> list[Overview]:
    """A grid for each network that others are compared with; one network alone has its values.

    ``others`` are networks that are compared with none: their values are in the first grid.
    """
    references: dict[str, list[Answer]] = {}
    for pair in pairs:
        references.setdefault(pair.second or pair.first, []).append(pair)
    grids = [(reference, found) for reference, found in references.items() if any(answer.lines for answer in found)]
    return [
        _overview(reference, found, silent, others if number == 0 else ())
        for number, (reference, found) in enumerate(grids)
    ]


def legend(views: Sequence[Overview]) -> str:
    """Return what is in the cells, and the meaning of the words that occur."""
    cells = [cell for view in views for _, line in view.lines for cell in line]
    if not any(cell.difference for cell in cells):
        return _SCORES
    kinds = {HIGHER if cell.kind == LOWER else cell.kind for cell in cells}
    return _SCORES + _DIFFERENCES + "".join(said for kind, said in _MEANINGS.items() if kind in kinds)


def _overview(
    reference: str, pairs: Sequence[Answer], silent: Collection[Benchmark], others: Sequence[Answer]
) -> Overview:
    measures = list(dict.fromkeys(line.benchmark for pair in pairs for line in pair.lines))
    measures.sort(key=lambda benchmark: benchmark in silent)
    of_measure: dict[Benchmark, list[AnswerLine]] = {key: [] for key in measures}
    for line in (line for pair in pairs for line in pair.lines):
        of_measure[line.benchmark].append(line)
    single = not any(pair.second for pair in pairs)
    first = tuple(
        _score("value", next((line.first if single else line.second for line in of_measure[key]), None))
        for key in measures
    )
    lines = [(reference, first)]
    for pair in (pair for pair in pairs if pair.second):
        known = {line.benchmark: line for line in pair.lines}
        lines.append((pair.first, tuple(_cell(known.get(key), key in silent) for key in measures)))
    for other in others:
        known = {line.benchmark: line for line in other.lines}
        lines.append((other.first, tuple(_cell(known.get(key), False) for key in measures)))
    floors = [of_measure[key][0].trivial for key in measures]
    if any(floors):
        cells = (
            MeasuredCell("floor", f"{row.value:.1f}", row.rule) if row else MeasuredCell("floor") for row in floors
        )
        lines.append((BASELINE, tuple(cells)))
    return Overview(tuple(f"{key.label}{_images(of_measure[key])}" for key in measures), tuple(lines))


def _floor(row: EvalResult | None) -> MeasuredCell:
    return MeasuredCell("floor", f"{row.value:.1f}", row.rule) if row else MeasuredCell("floor")


def _images(lines: Sequence[AnswerLine]) -> str:
    return images_said([side for line in lines for side in (line.first, line.second) if side])


def _score(kind: str, side: Measured | None) -> MeasuredCell:
    """A network's score, and the blocks it was read at or how the method failed there."""
    if side is None:
        return MeasuredCell("absent", at=NOT_RUN)
    at = side.blocks_said if side.blocks else ""
    return MeasuredCell(kind, f"{side.value:.1f}", ", ".join(filter(None, (at, side.failed_there.partition(" (")[0]))))


def _cell(line: AnswerLine | None, silent: bool) -> MeasuredCell:
    if line is None or line.first is None:
        return MeasuredCell("absent", at=NOT_RUN)
    score = _score("value", line.first)
    if line.second is None:
        return score
    if line.difference is None:
        return replace(score, kind=UNDECIDED, difference=signed(line.first.value - line.second.value), word=UNDECIDED)
    if line.why == SAME_WEIGHTS:
        return replace(score, kind="same", word=SAME_WEIGHTS)
    difference = points(line.difference)
    if silent:
        return replace(score, kind="silent", difference=difference, word=NOT_SEPARATING)
    word = f"{line.said}, network collapsed" if line.first.is_dead else line.said
    return replace(score, kind=line.verdict, difference=difference, word=word)


def overview_tables(views: Sequence[Overview]) -> list[TextTable]:
    """Write overviews as text tables."""
    tables = []
    for view in views:
        rows = [[name, *map(_as_text, cells)] for name, cells in view.lines]
        tables.append(TextTable("overview", "", [[("network", 1), *((m, 1) for m in view.measures)]], rows, 1))
    return tables


def _as_text(cell: MeasuredCell) -> str:
    """``47.2 (block 9), +10.6 [+3.6, +17.5] better``."""
    at = (f"({cell.at})" if cell.value else cell.at) if cell.at else ""
    parts = (" ".join(filter(None, (cell.value, at))), " ".join(filter(None, (cell.difference, cell.word))))
    return ", ".join(filter(None, parts))
