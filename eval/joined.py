"""Joined outputs of a task's parts for one network: levels whose grids differ are measured separately."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from dinoskip.errors import DataError
from dinoskip.results.records import ROWS, RecordedRow, read_records, write_recorded_rows
from dinoskip.results.rows import read_rows, write_rows


def part_folder(out: Path, blocks: Sequence[int]) -> Path:
    """Return the folder of a task's outputs for these blocks: their own one where not all blocks have the same grid."""
    folder = out / f"blocks{blocks[0]}-{blocks[-1]}" if blocks else out
    return folder if folder.is_dir() else out


def join_parts(out: Path, parts: Mapping[Path, int]) -> None:
    """Write into ``out`` the rows and records of all ``parts``, in their order; whatever else they hold stays there.

    ``parts`` gives the pixels a cell of each, which their rows' resolution says, so that a comparison of levels of
    different strides shows it. Rows of rules without a network stand once. Raises :class:`DataError` for records of
    different images.
    """
    recorded: list[RecordedRow] = []
    rules: set[tuple[str, str]] = set()
    ids: tuple[str, ...] | None = None
    for part, stride in parts.items():
        records = read_records(part)
        for row in read_rows(part / ROWS):
            if row.is_baseline and (row.model, row.metric) in rules:
                continue
            rules |= {(row.model, row.metric)} if row.is_baseline else set()
            of_images = records.get(row)
            if of_images is not None and ids not in (None, of_images.ids):
                raise DataError(f"{part}: its records are of other images than those before")
            ids = ids if of_images is None else of_images.ids
            said = row if row.is_baseline else replace(row, resolution=f"{row.resolution}, {stride} px a cell")
            recorded.append(RecordedRow(said, None if of_images is None else of_images.values))
    if ids is None:
        write_rows(out / ROWS, [record.row for record in recorded])
    else:
        write_recorded_rows(out, ids, recorded)
