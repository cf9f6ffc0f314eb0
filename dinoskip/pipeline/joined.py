"""What a task leaves of the parts of one network, joined: levels that have grids of their own are measured apart."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dinoskip.errors import DataError
from dinoskip.files import read_json, write_json
from dinoskip.records import RECORDS, ROWS, RecordedRow, read_records, write_recorded_rows
from dinoskip.results import read_rows, write_rows


def join_parts(out: Path, parts: Sequence[Path]) -> None:
    """Put rows, records and other files of the folders ``parts`` into ``out``, and remove them.

    Rows stand in the order of the parts; those of rules without a network once. Records are joined where all parts have
    them of the same images. A JSON object that several parts have is joined key by key; of other files that have one
    name the first part's is kept.
    """
    _join_rows(out, parts)
    for part in parts:
        for path in sorted(path for path in part.rglob("*") if path.is_file() and path.name not in (ROWS, RECORDS)):
            _join_file(path, out / path.relative_to(part))
    for part in parts:
        shutil.rmtree(part)


def _join_rows(out: Path, parts: Sequence[Path]) -> None:
    recorded: list[RecordedRow] = []
    rules: set[tuple[str, str]] = set()
    ids: tuple[str, ...] | None = None
    for part in parts:
        records = read_records(part)
        for row in read_rows(part / ROWS):
            if row.is_baseline and (row.model, row.metric) in rules:
                continue
            rules |= {(row.model, row.metric)} if row.is_baseline else set()
            of_images = records.get(row)
            if of_images is not None and ids not in (None, of_images.ids):
                raise DataError(f"{part}: its records are of other images than those of {parts[0]}")
            ids = ids if of_images is None else of_images.ids
            recorded.append(RecordedRow(row, None if of_images is None else of_images.values))
    if ids is None:
        write_rows(out / ROWS, [one.row for one in recorded])
    else:
        write_recorded_rows(out, ids, recorded)


def _join_file(path: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        path.rename(target)
    elif path.suffix == ".json":
        before, more = read_json(target), read_json(path)
        if isinstance(before, dict) and isinstance(more, dict):
            joined: dict[str, Any] = {**more, **before}
            write_json(target, joined)
