"""The answer as a table: a line a pair and benchmark, with the verdict and what must be known before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dinoskip.decisions.choosing import Score
from dinoskip.decisions.wording import points
from visualize.report.answer import Answer, Measured, choices, dependences, verdict
from visualize.report.cautions import cautions
from visualize.tables import TextTable, mean_deviation


def answer_table(
    compared: Sequence[Answer],
    name: str = "answer",
    title: str = "Which network is better",
    every: Sequence[Answer] = (),
) -> TextTable:
    """A line a pair and benchmark, as text; ``every`` has the lines, too, of measures that are not allowed to speak."""
    lines: list[list[str]] = []
    rules: set[int] = set()
    for answer in compared:
        rules.add(len(lines))
        for line in answer.lines:
            names = f"{answer.first} − {answer.second}" if answer.second else answer.first
            sides = (line.first, line.second)
            untrained = _beside(sides, lambda side: side.before)
            last = _beside(sides, lambda side: side.last)
            cells = [
                *map(_cell, sides),
                points(line.difference),
                line.certainty,
                untrained,
                last,
            ]
            floor = f"{line.trivial.value:.1f} ({line.trivial.rule})" if line.trivial else ""
            lines.append([names, line.benchmark.label, *cells, floor])
    columns = (
        "networks", "measure", "first", "second", "difference", "the first is", "untrained", "last block", "baseline",
    )  # fmt: skip
    notes = [
        note for note in (verdict(compared, every), *dependences(every), choices(compared), *cautions(compared)) if note
    ]
    return TextTable(name, title, [[(c, 1) for c in columns]], lines, 2, frozenset(rules), notes)


def _beside(sides: Sequence[Measured | None], which: Callable[[Measured], Sequence[Score]]) -> str:
    """``29.1 ± 0.3 / 28.5 ± 0.2`` of both networks, of those that have it."""
    listed = [[score.value for score in which(side)] for side in sides if side]
    return " / ".join(mean_deviation(values) for values in listed if values)


def _cell(side: Measured | None) -> str:
    """``37.5 [32.0, 42.1] b5, best on these images 38.0 b6``, or how the method failed; of seeds ``37.5 ± 0.4 b5``."""
    if side is None:
        return "not run"
    parts = side.parts
    if side.failed_there:
        return f"{parts['value']} {parts['block']}: {parts['interval']}"
    text = " ".join(filter(None, (parts["value"], parts["interval"], parts["block"])))
    return f"{text}, {parts['best']}" if parts["best"] else text
