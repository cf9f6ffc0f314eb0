"""Parts of the report page as plain values for its template: the answer, shaded tables, grids, styles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dinoskip.decisions.failures import failed_cuts
from dinoskip.decisions.wording import points
from visualize.palette import variant_colour, variant_places
from visualize.report.answer import Answer, AnswerLine
from visualize.report.tables import Line
from visualize.rows import FAILED_NOTE, Benchmark, Rows, single_blocks, values_of
from visualize.tables import NOT_RUN, DataTable, TextTable, mean_deviation, shown

_SHADES = 10  # in steps of .05: the darkest, of an opacity of .45, leaves the number legible
_SOURCES = ("ours", "untrained", "paper", "difference")
_OWN = "ours − "
"""How a line begins that compares our networks with one another."""


def styles(variants: Sequence[str]) -> str:
    """A colour for each variant, light and dark, and the shades of the per-block tables."""
    places = variant_places(variants)
    rules = [f".m{index}{{--own:{variant_colour(places[name])}}}" for index, name in enumerate(variants)]
    night = (f".m{index}{{--own:{variant_colour(places[name], dark=True)}}}" for index, name in enumerate(variants))
    rules += [f"@media (prefers-color-scheme: dark){{{rule}}}" for rule in night]
    shades = [f".h{level}{{background:rgba(var(--shade),{0.05 * level:.2f})}}" for level in range(_SHADES)]
    return "\n".join([*rules, *shades])


def answer(pair: Answer) -> dict[str, Any]:
    """Describe both networks of a pair on every benchmark, as text."""
    return {
        "first": pair.first,
        "second": pair.second,
        "lines": [_answer_line(pair, line) for line in pair.lines],
        "untrained": any(side.before for line in pair.lines for side in (line.first, line.second) if side),
    }


def _answer_line(pair: Answer, line: AnswerLine) -> dict[str, Any]:
    sides = [(pair.first, line.first), *([(pair.second, line.second)] if pair.second else [])]
    before = " / ".join(
        "–" if side is None else mean_deviation([score.value for score in side.before]) for _, side in sides
    )
    floor = line.trivial
    return {
        "label": line.benchmark.label,
        "scores": [(name, side.parts if side else None) for name, side in sides],
        "difference": points(line.difference),
        "verdict": line.verdict if line.difference else "",
        "certainty": line.certainty,
        "untrained": before if any(side.before for _, side in sides if side) else "",
        "trivial": (floor.rule, f"{floor.value:.1f}") if floor else None,
    }


def heat(
    benchmark: Benchmark,
    rows: Mapping[str, Rows],
    names: Sequence[str],
    begun: Mapping[str, Rows],
    floor: Sequence[Line],
    number: int,
) -> dict[str, Any]:
    """Variants × blocks of one benchmark with a shade 0.._SHADES-1 per cell, scaled over the whole table.

    Below them, without shades, the variants' random weights (``begun``) and baselines.
    """
    curves = {name: single_blocks(values_of(rows.get(name, {}))) for name in names}
    values = [value for curve in curves.values() for value in curve.values()]
    low, span = (min(values), max(max(values) - min(values), 1e-12)) if values else (0.0, 1.0)
    blocks = sorted({block for curve in curves.values() for block in curve})
    lines = []
    for name in names:
        curve = curves[name]
        top = max(curve.values(), default=None)
        cells = [
            None
            if block not in curve
            else (
                f"{curve[block]:.1f}" + ("†" if failed_cuts(rows[name][str(block)]) else ""),
                int((_SHADES - 1) * (curve[block] - low) / span),
                curve[block] == top,
            )
            for block in blocks
        ]
        lines.append((name, cells))
    gone = any(failed_cuts(row) for model_rows in rows.values() for row in model_rows.values())
    below = [(line.label, line.cells[number]) for line in floor if line.cells[number]]
    first = {f"{name}, epoch 0": single_blocks(values_of(model_rows)) for name, model_rows in begun.items()}
    start = [(label, [curve.get(block) for block in blocks]) for label, curve in first.items()]
    about = {"label": benchmark.label, "note": FAILED_NOTE if gone else ""}
    return {**about, "blocks": blocks, "lines": lines, "start": start, "floor": below}


def plain(table: DataTable) -> dict[str, Any]:
    """A :class:`DataTable` as text; a column is of numbers if none of its cells is text."""
    return {
        "title": table.title,
        "note": table.note,
        "folded": table.folded,
        "columns": list(table.columns),
        "rows": [[shown(cell) for cell in row] for row in table.rows],
        "numeric": [
            bool(table.rows) and all(not isinstance(row[index], str) for row in table.rows)
            for index in range(len(table.columns))
        ],
    }


def grid(table: TextTable) -> dict[str, Any]:
    """A :class:`TextTable` with a class for each row: a new part, and ours, paper or difference in a compared table."""
    lines = []
    for number, row in enumerate(table.rows):
        source = row[table.stubs - 1]
        kinds = [source] if source in _SOURCES else ["difference"] if source.startswith(_OWN) else []
        kinds += ["part"] if number in table.rules and number else []
        cells = [(cell, index >= table.stubs, cell == NOT_RUN) for index, cell in enumerate(row)]
        lines.append({"kinds": " ".join(kinds), "cells": cells})
    head = [[(text, span, index >= table.stubs) for index, (text, span) in enumerate(line)] for line in table.head]
    prose = table.stubs == len(table.columns)  # text alone: the last column is of sentences
    about = {"name": table.name, "title": table.title, "notes": list(table.notes), "prose": prose}
    return {**about, "head": head, "lines": lines}
