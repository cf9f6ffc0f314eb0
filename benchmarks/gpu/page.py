"""The section *GPU* of docs/measured.md: a table of each part, from committed lines alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.driver import PARTS, ROOT
from benchmarks.gpu.lines import PART_ENDED, read, shown
from benchmarks.pages import folded, markdown_table
from dinoskip.io.files import write_text

PAGE = ROOT / "docs" / "measured.md"
COMMITTED = ROOT / "docs" / "results" / "gpu"
BEGIN, END = "<!-- gpu: begin -->", "<!-- gpu: end -->"
NOTHING = "Nothing has been measured on a GPU yet. `python -m benchmarks.gpu` measures it in nine minutes."
STEP = ("images_s", "mfu", "ms", "peak_gib")
"""Columns of the table of steps: images a second, share of the card's peak, milliseconds, GiB."""
Row = Mapping[str, Any]


def committed() -> list[Path]:
    """The committed results, in order of their names, which begin with the day."""
    return sorted(COMMITTED.glob("*.jsonl"))


def write(paths: Sequence[Path]) -> None:
    """Write the section into the page."""
    write_text(PAGE, with_section(PAGE.read_text(), section([read([path]) for path in paths])))


def with_section(text: str, lines: Sequence[str]) -> str:
    """Return a page with these lines between its marks; ValueError for one without marks."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE.name} lacks {BEGIN} and {END}")
    return "\n".join([before + BEGIN, *lines, END + after])


def section(runs: Sequence[Sequence[Row]]) -> list[str]:
    """Return the lines of the section: of each run, the newest first, what was measured, on what and when."""
    measured = [rows for rows in runs if rows and not any(row.get("tiny") for row in rows)]
    if not measured:
        return ["", NOTHING, ""]
    return ["", *(line for rows in reversed(measured) for line in of_run(rows))]


def of_run(rows: Sequence[Row]) -> list[str]:
    """Return a run's heading, its steps, and everything else folded."""
    card = _first(rows, "card", "card") or "unknown card"
    torch = _first(rows, "versions", "torch") or "?"
    day = _first(rows, "begin", "day") or "?"
    commit = _first(rows, "machine", "dinoskip") or "?"
    lines = [f"**{card}**, torch {torch}, {day}, dinoskip {commit}.", "", *ratio(rows), *steps(rows)]
    for part, about in PARTS.items():
        own = [row for row in rows if row["part"] == part and row["name"] != PART_ENDED]
        codes = [str(row["code"]) for row in rows if row["part"] == part and row["name"] == PART_ENDED]
        if not own and not codes:  # not asked for
            continue
        ended = codes[-1] if codes else "not run"  # a part that had no time left may be run again on the same machine
        title = f"{part}: {about.measures} ({ended})"
        lines += folded(title, [*markdown_table(["result", "values"], [[row["name"], _values(row)] for row in own])])
    return lines


def steps(rows: Sequence[Row]) -> list[str]:
    """Return the table of the steps of training."""
    own = [row for row in rows if row["part"] in ("eager", "compiled") and "images_s" in row]
    cells = [[row["name"], *(shown(row.get(column, "")) for column in STEP)] for row in own]
    return markdown_table(["step", "images/s", "of the peak", "ms", "GiB"], cells) if own else []


def ratio(rows: Sequence[Row]) -> list[str]:
    """Return how much faster our compiled step is than the public style; nothing where either was not measured."""
    rates = {row["name"]: row["images_s"] for row in rows if row["part"] in ("eager", "compiled") and "images_s" in row}
    ours = rates.get("ours, compiled, adamw, batch 64")
    others = {
        "the public style, eager": "public, eager, fp16, plain attention, batch 64",
        "a modern one, compiled": "modern, compiled, bf16, fused attention, batch 64",
    }
    parts = [f"{ours / rates[name]:.2f} times {label}" for label, name in others.items() if ours and name in rates]
    return [f"The compiled step at batch 64 is {' and '.join(parts)}.", ""] if parts else []


def _first(rows: Sequence[Row], name: str, key: str) -> str | None:
    return next((str(row[key]) for row in rows if row["name"] == name and key in row), None)


def _values(row: Row) -> str:
    text = ", ".join(f"{key} {shown(value)}" for key, value in row.items() if key not in ("part", "name", "t"))
    return text.replace("|", "\\|").replace("\n", " ")[:600]
