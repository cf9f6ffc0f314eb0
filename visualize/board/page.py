"""The page of a board, and ``board.csv``, ``refused.csv`` and ``rows.csv`` beside it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dinoskip.decisions.wording import points
from dinoskip.io.files import write_text
from dinoskip.io.output import Output
from dinoskip.results.rows import rows_csv
from visualize.board.ranking import SETTING, Board, BoardLine, BoardTable
from visualize.pages import render_page
from visualize.report.rows_page import write_long_table
from visualize.tables import as_csv

BOARD_FILES = ("index.html", "rows.html", "rows.csv", "board.csv", "refused.csv")
"""What :func:`write_board` makes."""
_SHOWN_REFUSED = 200  # pairs grow as the square of the networks; refused.csv has all


def write_board(board: Board, out: Path, title: str = "Board") -> Path:
    """Write ``index.html``, ``rows.html`` and the CSV files into ``out``; return the page.

    Raises :class:`ConfigError` for a file there that no board has made.
    """
    with Output(out, "board").filled() as folder:
        _write(board, folder, title, {source.name: _link(source.gallery, out) for source in board.sources})
    return out / "index.html"


def _write(board: Board, out: Path, title: str, galleries: Mapping[str, str]) -> None:
    names = [source.name for source in board.sources for _ in source.rows]
    write_text(out / "rows.csv", rows_csv((row for source in board.sources for row in source.rows), names))
    write_text(out / "board.csv", _board_csv(board))
    heads = ("measure", *(f"{key} {side}" for key in SETTING for side in ("one", "other")))
    refused = [
        [pair.label, *(value for key in SETTING for value in pair.differs.get(key, ("", "")))] for pair in board.refused
    ]
    write_text(out / "refused.csv", as_csv(heads, refused))
    write_long_table(title, {source.name: source.rows for source in board.sources}, out / "rows.html")
    context = {
        "title": title,
        "tables": [_shown(table, {source.name: source.words for source in board.sources}) for table in board.tables],
        "refused": [(pair.label, pair.text) for pair in board.refused[:_SHOWN_REFUSED]],
        "more_refused": max(0, len(board.refused) - _SHOWN_REFUSED),
        "sources": [(source.name, len(source.rows), galleries[source.name]) for source in board.sources],
    }
    render_page(out / "index.html", "board.html", context, styles=("base.css", "report.css"), script="sort.js")


def _link(page: Path | None, out: Path) -> str:
    """The address of a gallery from the board's page, if it can be written as a relative path; else nothing."""
    if page is None:
        return ""
    address = Path(os.path.relpath(page.resolve(), out.resolve())).as_posix()
    return "" if ":" in address or "\\" in address else address


def _shown(table: BoardTable, words: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    """Return the template's data for a table; ``words`` gives the networks' names on pages, by source and name."""
    setting = ", ".join(f"{name} {value}" for name, value in table.setting.items() if value)
    blocks = table.blocks
    lines = [
        {
            "rank": "" if line.rank is None else line.rank,
            "places": "" if line.places is None else _places(line.places),
            "source": line.source,
            "backbone": words.get(line.source, {}).get(line.backbone, line.backbone),
            "value": f"{line.score.value:.1f}",
            "key": f"{line.score.value:.10g}",
            "interval": _interval(line),
            "block": line.score.block.replace("b", ""),
            "how": line.how,
            "difference": points(line.difference),
            "verdict": line.verdict,
            "p": "" if line.p is None else f"{line.p:.2g}",
            "blocks": [_cell(line.values.get(block)) for block in blocks],
        }
        for line in table.lines
    ]
    return {"label": table.label, "setting": setting, "blocks": blocks, "lines": lines}


def _places(places: tuple[int, int]) -> str:
    """``2-4``, or ``1`` where one is left."""
    return "-".join(map(str, dict.fromkeys(places)))


def _interval(line: BoardLine) -> str:
    low, high = line.score.low, line.score.high
    return "" if low is None or high is None else f"{low:.1f}-{high:.1f}"


def _cell(value: float | None) -> tuple[str, str]:
    return ("", "") if value is None else (f"{value:.1f}", f"{value:.10g}")


_COLUMNS = (
    "measure", *SETTING, "rank", "source", "backbone", "block", "chosen", "value", "low", "high",
    "difference", "difference_low", "difference_high", "paired", "p_holm", "places", "verdict", "selected",
)  # fmt: skip


def _board_csv(board: Board) -> str:
    lines = []
    for table in board.tables:
        for line in table.lines:
            score, difference = line.score, line.difference
            apart = () if difference is None else (difference.value, difference.low, difference.high, difference.paired)
            lines.append(
                [
                    table.label, *(table.setting[name] for name in SETTING), line.rank, line.source, line.backbone,
                    score.block.replace("b", ""), line.how, score.value, score.low, score.high,
                    *(apart or [None] * 4), line.p, None if line.places is None else _places(line.places),
                    line.verdict, score.selected,
                ]
            )  # fmt: skip
    return as_csv(_COLUMNS, lines)
