"""The table of the report's first screen: networks × metrics, each score with its block, difference and verdict."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from dinoskip.decisions.comparing import HIGHER, LOWER, UNDECIDED
from dinoskip.decisions.wording import ROUNDED, points, signed
from dinoskip.results.rows import EvalResult
from visualize.report.answer import SAME_WEIGHTS, Answer, AnswerLine, Measured, beats, images_said
from visualize.rows import Benchmark
from visualize.tables import NOT_RUN, TextTable

NOT_SEPARATING = "inconclusive"
BASELINE = "best baseline"
MOST_COLUMNS = 4  # networks beside each other; more are lines
_SCORES = "Each cell: the score, in points, and its block."
_BEST = " Best here: of the best block on these images, an upper estimate."
_DIFFERENCES = " Below: the difference from the first network with its 95 % interval."
_MEANINGS = {
    UNDECIDED: " Undecided: not significant, or for another reason, which “Scores, intervals, blocks, p” gives.",
    "silent": " Inconclusive: no trained network is clearly above every baseline and every untrained network.",
    HIGHER: " Higher, lower: significant over the images, with one training of each network; another seed may differ.",
}


@dataclass(frozen=True)
class MeasuredCell:
    """One network on one metric, as text: ``value`` where it was read (``at``), ``difference`` and verdict (``word``).

    ``kind`` is a class of the style sheet, ``best`` the score of another block that is the best on the images shown.
    """

    kind: str
    value: str = ""
    at: str = ""
    best: str = ""
    difference: str = ""
    word: str = ""


@dataclass(frozen=True)
class Overview:
    """Networks with the one that they are compared with first, by metric; the last line is the best baseline's.

    ``hows`` says how blocks were chosen for each metric.
    """

    measures: tuple[str, ...]
    hows: tuple[str, ...]
    lines: tuple[tuple[str, tuple[MeasuredCell, ...]], ...]


@dataclass(frozen=True)
class OverviewGrid:
    """An overview as it is shown: heads with what is said below them, and lines, each with its head and cells."""

    heads: tuple[tuple[str, str], ...]
    lines: tuple[tuple[tuple[str, str], tuple[MeasuredCell, ...]], ...]


def grid_of(view: Overview) -> OverviewGrid:
    """Return metrics as lines, so that networks stand beside each other; of many networks, networks as lines.

    The page has room for less of each of many networks: neither the best score nor the reason for a verdict.
    """
    metrics = tuple(zip(view.measures, view.hows, strict=True))
    networks = tuple((name, "") for name, _ in view.lines)
    columns = [cells for _, cells in view.lines]
    if sum(name != BASELINE for name, _ in networks) > MOST_COLUMNS:
        short = [tuple(replace(one, best="", word=one.word.partition(":")[0]) for one in cells) for cells in columns]
        return OverviewGrid(metrics, tuple(zip(networks, short, strict=True)))
    return OverviewGrid(networks, tuple(zip(metrics, zip(*columns, strict=True), strict=True)))


def overviews(pairs: Sequence[Answer], silent: Collection[Benchmark], others: Sequence[Answer] = ()) -> list[Overview]:
    """A grid for each network that others are compared with; one network alone has its values.

    ``others`` are networks that are compared with none: their values are in the first grid.
    """
    references: dict[str, list[Answer]] = {}
    for pair in pairs:
        references.setdefault(pair.second or pair.first, []).append(pair)
    grids = [(reference, found) for reference, found in references.items() if any(answer.lines for answer in found)]
    if not grids and others:  # of the networks that are compared none has a score
        grids, others = [(others[0].first, list(others[:1]))], others[1:]
    return [
        _overview(reference, found, silent, others if number == 0 else ())
        for number, (reference, found) in enumerate(grids)
    ]


def legend(grids: Sequence[OverviewGrid]) -> str:
    """Return what is in the cells, and the meaning of the words that occur."""
    cells = [cell for grid in grids for _, line in grid.lines for cell in line]
    scores = _SCORES + (_BEST if any(cell.best for cell in cells) else "")
    if not any(cell.difference for cell in cells):
        return scores
    kinds = {HIGHER if cell.kind == LOWER else cell.kind for cell in cells}
    return scores + _DIFFERENCES + "".join(said for kind, said in _MEANINGS.items() if kind in kinds)


def _overview(
    reference: str, pairs: Sequence[Answer], silent: Collection[Benchmark], others: Sequence[Answer]
) -> Overview:
    measures = list(dict.fromkeys(line.benchmark for answer in (*pairs, *others) for line in answer.lines))
    measures.sort(key=lambda benchmark: benchmark in silent)
    of_measure: dict[Benchmark, list[AnswerLine]] = {key: [] for key in measures}  # none stays empty
    for line in (line for answer in (*pairs, *others) for line in answer.lines):
        of_measure[line.benchmark].append(line)
    single = not any(pair.second for pair in pairs)
    of_pairs = {line.benchmark: line.first if single else line.second for pair in pairs[::-1] for line in pair.lines}
    lines = [(reference, tuple(_score("value", of_pairs.get(key), of_measure[key]) for key in measures))]
    for pair in (pair for pair in pairs if pair.second):
        known = {line.benchmark: line for line in pair.lines}
        lines.append((pair.first, tuple(_cell(known.get(key), key in silent) for key in measures)))
    for other in others:
        known = {line.benchmark: line for line in other.lines}
        cells = (_cell(known.get(key), False) for key in measures)
        lines.append((other.first, tuple(replace(cell, word="not compared") if cell.value else cell for cell in cells)))
    floors = [of_measure[key][0].trivial for key in measures]
    if any(floors):
        lines.append((BASELINE, tuple(map(_floor, floors))))
    labels = tuple(f"{key.label}{_images(of_measure[key])}" for key in measures)
    return Overview(labels, tuple(_how(of_measure[key]) for key in measures), tuple(lines))


def _floor(row: EvalResult | None) -> MeasuredCell:
    return MeasuredCell("floor", f"{row.value:.1f}", row.rule) if row else MeasuredCell("floor")


def _images(lines: Sequence[AnswerLine]) -> str:
    return images_said([side for line in lines for side in (line.first, line.second) if side])


def _how(lines: Sequence[AnswerLine]) -> str:
    """Return how the blocks of all networks were chosen, where it is one way."""
    hows = {score.how for line in lines for side in (line.first, line.second) if side for score in side.now}
    return f"block {hows.pop()}" if len(hows) == 1 and "" not in hows else ""


def _score(kind: str, side: Measured | None, lines: Sequence[AnswerLine]) -> MeasuredCell:
    """A network's score, and the blocks it was read at or how the method failed there."""
    if side is None:
        return MeasuredCell("absent", at=NOT_RUN)
    at = side.blocks_said.partition(" (")[0] if side.blocks else ""
    failed = side.failed_there.partition(" (")[0]
    floor = next((line.trivial for line in lines if line.trivial), None)
    beaten = floor is None or beats(side.value, floor.value, side.lowest)
    said = (at, failed, "network collapsed" if side.is_dead else "", "" if beaten else "no better than the baseline")
    at = ", ".join(filter(None, said))
    first = side.now[0]
    top = first.best if len(side.now) == 1 and first.optimism >= ROUNDED else None
    return MeasuredCell(kind, f"{side.value:.1f}", at, f"best here {top.value:.1f}, block {top.block}" if top else "")


def _cell(line: AnswerLine | None, silent: bool) -> MeasuredCell:
    if line is None or line.first is None:
        return MeasuredCell("absent", at=NOT_RUN)
    score = _score("value", line.first, [line])
    if line.second is None:
        return score
    if line.difference is None:
        return replace(score, kind=UNDECIDED, difference=signed(line.first.value - line.second.value), word=UNDECIDED)
    if line.why == SAME_WEIGHTS:
        return replace(score, kind="same", word=SAME_WEIGHTS)
    difference = points(line.difference)
    if silent:
        return replace(score, kind="silent", difference=difference, word=NOT_SEPARATING)
    word = line.said if line.sign else line.certainty.partition(": another")[0]
    return replace(score, kind=line.verdict, difference=difference, word=word)


def overview_tables(grids: Sequence[OverviewGrid]) -> list[TextTable]:
    """Write overviews as text tables."""
    tables = []
    for grid in grids:
        rows = [[", ".join(filter(None, head)), *map(_as_text, cells)] for head, cells in grid.lines]
        heads = [(", ".join(filter(None, head)), 1) for head in grid.heads]
        tables.append(TextTable("overview", "", [[("", 1), *heads]], rows, 1))
    return tables


def _as_text(cell: MeasuredCell) -> str:
    """``47.2 (block 9), best here 48.0, block 10; +10.6 [+3.6, +17.5], better``."""
    at = (f"({cell.at})" if cell.value else cell.at) if cell.at else ""
    value = ", ".join(filter(None, (" ".join(filter(None, (cell.value, at))), cell.best)))
    return "; ".join(filter(None, (value, ", ".join(filter(None, (cell.difference, cell.word))))))
