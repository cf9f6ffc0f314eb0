"""Every result row on a page of its own: what all rows share above, the fields that differ as sortable columns."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence
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
    every = [{"variant": name, **row.plain()} for name, rows in variants.items() for row in rows]
    noted = [row for row in every if row["note"]]
    known = {_number(row) for row in every if not row["note"]} if noted else set()
    plain = [row for row in every if not row["note"] or _number(row) not in known]
    if plain and all(row["variant"] == row["model"] for row in plain):
        for row in plain:
            del row["model"]
    fields = sorted(plain[0], key=lambda key: _FIRST.index(key) if key in _FIRST else len(_FIRST)) if plain else []
    shared: dict[str, str] = {}
    columns: list[tuple[str, bool]] = []
    for name in fields:
        values = {row[name] for row in plain}
        if values <= {"", None, 0}:
            continue
        if len(values) == 1 and name not in {"variant", "value"}:
            shared[name] = _text(name, values.pop())
        else:
            columns.append((name, all(value is None or isinstance(value, int | float) for value in values)))
    rows = [[(_text(name, row[name]), _sorted_by(row[name])) for name, _ in columns] for row in plain]
    return {"shared": shared, "columns": columns, "rows": rows, "left_out": len(every) - len(plain)}


def _number(row: Mapping[str, Any]) -> Hashable:
    """Return a plain row without its note and other remarks: two rows that agree in this are listed once."""
    return tuple(row[name] for name in row if name not in _BESIDE)


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
    rows = [[[clean(text), key] if key else clean(text) for text, key in row] for row in table["rows"]]
    text = json.dumps(rows, ensure_ascii=False, separators=(",", ":"))
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))
