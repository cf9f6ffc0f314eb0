"""What pages of results are made of: tables, means over seeds, curves beside the page."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from visualize.figures.drawing import write_figure


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table, an empty one behind it; the first column to the left, the others to the right."""
    return [
        f"| {' | '.join(columns)} |",
        f"|---|{'---:|' * (len(columns) - 1)}",
        *(f"| {' | '.join(row)} |" for row in rows),
        "",
    ]


def cost_line(seconds: float, machine: Mapping[str, str], ended: float) -> str:
    """Core-hours of runs of one thread, the machine (:func:`dinoskip.environment.describe`) and the day they ended."""
    day = datetime.fromtimestamp(ended, UTC).date()
    where = f"{machine['cores']} cores, {machine['memory']}, torch {machine['torch']}, Python {machine['python']}"
    return f"{seconds / 3600:.1f} core-hours, {where}, {day}"


def draw_beside(place: Path, name: str, picture: Callable[[], Any], alt: str) -> str:
    """Write ``place/name.svg``; the Markdown that shows it."""
    with tempfile.TemporaryDirectory() as scratch:
        drawn = write_figure(Path(scratch) / name, picture, alt, alt, alt)
        shutil.copyfile(drawn.light, place / f"{name}.svg")
    return f"![{alt}]({name}.svg)"
