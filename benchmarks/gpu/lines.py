"""Result lines: one JSON object a line, appended at once, and what of them is shown."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

RESULTS, SUMMARY, LOG = "results.jsonl", "summary.txt", "log.txt"
PART_ENDED = "part"
"""Name of the line that is written when a part has ended: its ``code`` and seconds."""
_HEAD = ("part", "name", "t")


def append(folder: Path, row: Mapping[str, Any]) -> None:
    """Append a row to the results of ``folder``; numbers that are not finite become null."""
    with (folder / RESULTS).open("a") as stream:
        stream.write(json.dumps({key: _plain(value) for key, value in row.items()}, default=str) + "\n")


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """All rows of several files; a last line that was cut off while it was written is left out."""
    rows = []
    for path in paths:
        for line in path.read_text().splitlines():
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError:
                continue
    return rows


def shown(value: Any) -> str:
    """A value in a line of text: numbers with four digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def summary(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """A line for each row: its name and values; where a part has ended, how."""
    lines = []
    for row in rows:
        if row["name"] == PART_ENDED:
            lines.append(f"-- {row['part']}: {row['code']}, {row['s']} s")
            continue
        values = ", ".join(f"{key} {shown(value)}" for key, value in row.items() if key not in _HEAD)
        lines.append(f"{row['name']}: {values}"[:260])
    return lines
