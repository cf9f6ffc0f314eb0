"""Parts of pages of results: rows, tables, folded parts, costs, curves beside the page."""

from __future__ import annotations

import csv
import gzip
import io
import math
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args, get_type_hints

from dinoskip.io.files import read_json, write_bytes, write_text
from dinoskip.results.rows import EvalResult
from visualize.figures.drawing import write_figure


def _type_of(hint: Any) -> type:
    """The type of a field of rows: of one that may be None the other, of words the text's."""
    first = (*get_args(hint), hint)[0]
    return first if isinstance(first, type) else type(first)


_KINDS = {name: _type_of(hint) for name, hint in get_type_hints(EvalResult).items()}


def read_csv(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file, which may end in .gz."""
    content = path.read_bytes()
    return list(csv.DictReader(io.StringIO((gzip.decompress(content) if path.suffix == ".gz" else content).decode())))


def write_csv(path: Path, names: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows, complete or not at all; .gz is compressed, with the same bytes for the same rows."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".gz":
        write_bytes(path, gzip.compress(stream.getvalue().encode(), mtime=0))
    else:
        write_text(path, stream.getvalue())


def replace_rows(
    path: Path, names: Sequence[str], rows: Sequence[Mapping[str, Any]], keys: Sequence[str],
    order: Callable[[Mapping[str, Any]], Any] | None = None,
) -> None:  # fmt: skip
    """Add rows to a CSV file, which may not be there yet, in place of those that agree with them in ``keys``.

    All are sorted by ``order``, by default by the text of the keys.
    """
    new = {tuple(str(row[key]) for key in keys) for row in rows}
    kept = [row for row in read_csv(path) if tuple(row[key] for key in keys) not in new] if path.is_file() else []
    write_csv(path, names, sorted([*kept, *rows], key=order or (lambda row: [str(row[key]) for key in keys])))


def result_row(entry: Mapping[str, str]) -> EvalResult:
    """A line of :func:`dinoskip.results.rows.rows_csv`, perhaps an older one's; nan without a value.

    Raises TypeError for a line without a column that it needs, ValueError for one that is no number.
    """
    known = {name: (text, _KINDS[name]) for name, text in entry.items() if name in _KINDS}
    given = {name: kind(text) for name, (text, kind) in known.items() if text or kind is str}
    return EvalResult(**{"value": math.nan, **given})


def folded(title: str, lines: Iterable[str]) -> list[str]:
    """Lines that a page shows when its reader asks for them."""
    return [f'<details markdown="1"><summary>{title}</summary>', "", *lines, "</details>", ""]


def stage_seconds(folders: Iterable[Path]) -> float:
    """Sum the seconds of all finished stages of studies."""
    return sum(float(read_json(path)["seconds"]) for folder in folders for path in folder.rglob("timing.json"))


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table, an empty one behind it; the first column to the left, the others to the right."""
    return [
        f"| {' | '.join(columns)} |",
        f"|---|{'---:|' * (len(columns) - 1)}",
        *(f"| {' | '.join(row)} |" for row in rows),
        "",
    ]


def cost_line(seconds: float, machine: Mapping[str, str], ended: float) -> str:
    """Core-hours of runs of one thread, the machine (:func:`dinoskip.runtime.environment.describe`) and the day they
    ended."""
    day = datetime.fromtimestamp(ended, UTC).date()
    where = f"{machine['cores']} cores, {machine['memory']}, torch {machine['torch']}, Python {machine['python']}"
    return f"{seconds / 3600:.1f} core-hours, {where}, {day}"


def draw_beside(place: Path, name: str, picture: Callable[[], Any], alt: str) -> str:
    """Write ``place/name.svg``; the Markdown that shows it."""
    with tempfile.TemporaryDirectory() as scratch:
        drawn = write_figure(Path(scratch) / name, picture, alt, alt, alt)
        shutil.copyfile(drawn.light, place / f"{name}.svg")
    return f"![{alt}]({name}.svg)"
