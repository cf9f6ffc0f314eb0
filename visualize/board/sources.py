"""Sources of a leaderboard: the rows of every named study or folder, their records, and the location of its gallery.

A study counts by its current outputs, those that its ``records`` name; any other folder by every ``rows.json`` in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dinoskip.errors import ConfigError, DataError
from dinoskip.io.files import read_json
from dinoskip.results.records import ROWS, ImageRecords, read_records
from dinoskip.results.rows import EvalResult, rows_in
from visualize.report.names import words_of_report

_KEY_LETTERS = 16  # of a key in the name of an output


@dataclass(frozen=True, eq=False)
class BoardSource:
    """One study or folder: its name on the board, its rows, what images contribute to them, and its gallery.

    ``words`` are what pages call networks, by their names in rows, where the source has a report. ``unresolved`` says
    of networks, or of all seeds of one, why no rate of their sweep is known to be the best.
    """

    name: str
    rows: tuple[EvalResult, ...]
    records: dict[EvalResult, ImageRecords]
    gallery: Path | None = None
    unresolved: Mapping[str, str] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)

    def rate_of(self, row: EvalResult) -> str:
        """Return why a row's learning rate in training is unresolved; "" where it is resolved, and before training."""
        family, _, seed = row.model.rpartition("-s")
        why = self.unresolved.get(row.model) or (self.unresolved.get(family, "") if seed.isdigit() else "")
        return why if row.epoch else ""


def read_sources(named: Sequence[str]) -> list[BoardSource]:
    """Read ``PATH`` or ``NAME=PATH`` each: a ``rows.json``, a study, or a folder with any of them below it.

    Without a name it is the folder's own; of equal ones the second is followed by ``(2)``. Raises :class:`ConfigError`
    for a path without rows, :class:`DataError` for rows that cannot be read.
    """
    sources: list[BoardSource] = []
    for text in named:
        name, equals, path = text.partition("=")
        given = Path(path if equals and not Path(text).exists() else text).expanduser()
        folders = _folders(given)
        if not folders:
            raise ConfigError(f"{given}: holds no {ROWS}", "name a study, or a folder below which an evaluation wrote")
        folder = given.resolve().parent if given.name == ROWS else given.resolve()
        label = name if equals and not Path(text).exists() else folder.name
        sources.append(_read(_unique(label, [source.name for source in sources]), folders, given))
    return sources


def _unique(name: str, taken: Sequence[str]) -> str:
    number, unique = 1, name
    while unique in taken:
        number += 1
        unique = f"{name} ({number})"
    return unique


def _folders(path: Path) -> list[Path]:
    """Folders with rows: of studies those of current outputs alone, and not the copy of all rows beside them."""
    if path.is_file():
        return [path.parent] if path.name == ROWS else []
    below = sorted(rows_file.parent for rows_file in path.rglob(ROWS)) if path.is_dir() else []
    return [folder for folder in below if not _is_study(folder) and _is_current(folder)]


def _is_study(folder: Path) -> bool:
    return (folder / "stages").is_dir() and (folder / "records").is_dir()


def _is_current(output: Path) -> bool:
    """Whether an output of a study is the one that its record names; True for what is no output of a study."""
    study = next((folder for folder in output.parents if _is_study(folder)), None)
    if study is None or study / "stages" not in output.parents:
        return True
    record = study / "records" / output.parent.relative_to(study / "stages")
    record = record.with_name(f"{record.name}.json")
    return record.is_file() and str(read_json(record).get("key", ""))[:_KEY_LETTERS] == output.name


def _gallery(path: Path) -> Path | None:
    """The page of a study's current gallery."""
    record = path / "records" / "gallery.json"
    if not record.is_file():
        return None
    page = path / "stages" / "gallery" / str(read_json(record).get("key", ""))[:_KEY_LETTERS] / "index.html"
    return page if page.is_file() else None


def _unresolved(path: Path) -> dict[str, str]:
    """Return why a learning rate is unresolved, by network, from a study's current sweeps."""
    every = {
        file.parent.parent.name: file for file in path.glob("stages/sweep/*/*/sweep.json") if _is_current(file.parent)
    }
    return {name: why for name, file in sorted(every.items()) if (why := str(read_json(file).get("unresolved", "")))}


def _read(name: str, folders: Sequence[Path], given: Path) -> BoardSource:
    rows: dict[EvalResult, None] = {}
    records: dict[EvalResult, ImageRecords] = {}
    for folder in folders:
        rows |= dict.fromkeys(rows_in(folder))
        for row, record in read_records(folder).items():
            if row in records and records[row].ids != record.ids:
                raise DataError(f"{folder}: the row of {row.model} at block {row.block} is of other images elsewhere")
            records[row] = record
    return BoardSource(
        name, tuple(rows), records, _gallery(given), _unresolved(given), words_of_report(given / "report")
    )
