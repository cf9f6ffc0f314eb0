"""Every result row on a page of its own: what all rows share above, the fields that differ as sortable columns."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from operator import attrgetter
from pathlib import Path
from typing import Any

from markupsafe import Markup

from dinoskip.results.rows import EvalResult
from visualize.pages import clean, render_page

_FIRST = ("variant", "epoch", "task", "metric", "dataset", "split", "block", "value", "low", "high", "deviation")
_BESIDE = (
    "note", "low", "high", "deviation", "heldout", "token_cosine", "complete", "degenerate", "ambiguous", "selected",
    "kernels", "accepted", "network_file",
)  # fmt: skip
MOST_STANDING = 1000
"""Rows that stand in the page as they are, for readers without scripts; of more (13,000 rows are 194,000 elements, 9 s
to open) the page shows a hundred at a time."""
_SHORT = {"weights": 12}  # letters of a hash that are shown; rows.csv has it whole


def long_table(variants: Mapping[str, Sequence[EvalResult]]) -> dict[str, Any]:
    """``{"shared": {field: text}, "columns": [(field, is a number)], "rows": [[(text, sorting key)]], "left_out": 0}``.

    A field that is empty in all rows is in neither. Rows that repeat another with a note (such as "best on validation")
    are left out.
    """
    rows = [row for of_variant in variants.values() for row in of_variant]
    every = {"variant": [name for name, of_variant in variants.items() for _ in of_variant], **_columns(rows)}
    kept = _unrepeated(every)
    plain = every if len(kept) == len(rows) else {name: [column[at] for at in kept] for name, column in every.items()}
    if plain["variant"] == plain["model"]:
        del plain["model"]
    shared: dict[str, str] = {}
    columns: list[tuple[str, bool]] = []
    cells: list[list[tuple[str, str]]] = []
    for name in sorted(plain, key=lambda key: _FIRST.index(key) if key in _FIRST else len(_FIRST)):
        values = set(plain[name])
        if values <= {"", None, 0}:
            continue
        if len(values) == 1 and name not in {"variant", "value"}:
            shared[name] = _text(name, values.pop())
        else:
            columns.append((name, all(value is None or isinstance(value, int | float) for value in values)))
            cells.append(_cells(name, plain[name], values))
    lines = [list(line) for line in zip(*cells, strict=True)]
    return {"shared": shared, "columns": columns, "rows": lines, "left_out": len(rows) - len(kept)}


def _columns(rows: Sequence[EvalResult]) -> dict[str, list[Any]]:
    """The fields of rows, each with a value a row; a number that is not finite is None."""
    by_field = {field.name: list(map(attrgetter(field.name), rows)) for field in fields(EvalResult)}
    for name, column in by_field.items():
        if not all(math.isfinite(value) for value in set(column) if isinstance(value, float)):
            by_field[name] = [
                None if isinstance(value, float) and not math.isfinite(value) else value for value in column
            ]
    return by_field


def _unrepeated(every: Mapping[str, Sequence[Any]]) -> Sequence[int]:
    """Places of rows that do not repeat one without a note: two rows that agree but for :data:`_BESIDE`."""
    notes = every["note"]
    if not any(notes):
        return range(len(notes))
    numbers = list(zip(*(column for name, column in every.items() if name not in _BESIDE), strict=True))
    known = {number for number, note in zip(numbers, notes, strict=True) if not note}
    return [at for at, (number, note) in enumerate(zip(numbers, notes, strict=True)) if not note or number not in known]


def _cells(name: str, column: Sequence[object], values: Collection[object]) -> list[tuple[str, str]]:
    """The text and the sorting key of each value of a column that has these ``values``, each text made once."""
    if all(isinstance(value, str) for value in values):  # numbers: 0 and 0.0 are equal and have other texts
        texts = {value: (_text(name, value), "") for value in values}
        return [texts[value] for value in column]
    return [(_text(name, value), _sorted_by(value)) for value in column]


def _text(name: str, value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.2f}"
    return str(value)[: _SHORT.get(name, 300)]


def _sorted_by(value: object) -> str:
    """Return a float at full length, by which the page's script sorts; "" where the text shown sorts as well."""
    return f"{value:.10g}" if isinstance(value, float) else ""


def write_long_table(title: str, variants: Mapping[str, Sequence[EvalResult]], out: Path) -> None:
    """Write the page to ``out``; it stands beside the report's ``index.html``."""
    table = long_table(variants)
    many = len(table["rows"]) > MOST_STANDING
    data = _as_data(table) if many else ""
    context = {"title": title, "table": table, "data": data, "count": len(table["rows"])}
    script = "rows.js" if many else "sort.js"
    render_page(out, "rows.html", context, styles=("base.css", "report.css"), script=script)


def _as_data(table: Mapping[str, Any]) -> Markup:
    """The rows as JSON that no HTML parser takes for markup: the page's script shows some of them at a time."""
    cleaned = {text: clean(text) for text in {text for row in table["rows"] for text, _ in row}}
    rows = [[[cleaned[text], key] if key else cleaned[text] for text, key in row] for row in table["rows"]]
    text = json.dumps(rows, ensure_ascii=False, separators=(",", ":"))
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))
