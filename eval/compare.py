"""Two results compared over the same images: any two rows, of one study or of two, by the records beside them.

A row is named ``FOLDER``, or ``FOLDER@block=7,norm=final``: a folder that holds ``rows.json`` (or the file itself), and
fields that the row must have. Where several blocks are left, one is chosen without the images that are reported: a
probe's by its held-out training images, others by cross-fitting.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np

from dinoskip.errors import ConfigError, DataError, did_you_mean
from dinoskip.records import ROWS, ImageRecords, read_records
from dinoskip.results import LOWER_IS_BETTER, UNKNOWN_EPOCH, EvalResult, best_by_heldout, read_rows
from dinoskip.statistics import Difference, McNemar, Records, cross_fitted_best, mcnemar, paired_difference

_SAME = ("metric", "dataset", "split", "classes")  # rows that differ in one of these are not of one thing
_SAID = ("task", "block", "facet", "norm", "protocol", "resolution")  # in these they may differ
_FIELDS = tuple(field.name for field in fields(EvalResult))


@dataclass(frozen=True, eq=False)
class Candidate:
    """A result to be compared: its row, how its block came about, and the images' records, of every seed of the fit."""

    row: EvalResult
    block: str
    records: tuple[ImageRecords, ...]

    @property
    def name(self) -> str:
        """The model, its epoch where there is one, and the block."""
        epoch = "" if self.row.epoch == UNKNOWN_EPOCH else f" epoch {self.row.epoch}"
        return f"{self.row.model or 'unnamed'}{epoch}" + (f" block {self.block}" if self.block else "")


@dataclass(frozen=True, eq=False)
class RowComparison:
    """``a`` minus ``b`` in percentage points (errors in their unit), paired over images; for hits McNemar's test, too.

    ``differs`` names what else is not the same in the two rows: a difference may come from it.
    """

    a: Candidate
    b: Candidate
    difference: Difference
    mcnemar: McNemar | None
    differs: tuple[str, ...]

    @property
    def text(self) -> str:
        """In one line, ``CorLoc on voc2007 trainval, 60 images: x block 2 - y block 7 = +5.2 [+1.1, +9.0], p 0.01``."""
        row, d = self.a.row, self.difference
        where = f"{row.metric} on {row.dataset} {row.split}, {d.n} images"
        value, low, high = (f"{one:+{row.digits}}" for one in (d.value, d.low, d.high))
        line = f"{where}: {self.a.name} - {self.b.name} = {value} [{low}, {high}], p {d.p:.2g}"
        if self.mcnemar is not None:
            line += f"; McNemar {self.mcnemar.only_a} : {self.mcnemar.only_b}, p {self.mcnemar.p:.2g}"
        return line + (f"; differ in {', '.join(self.differs)}" if self.differs else "")


def parse_row(text: str) -> tuple[Path, dict[str, str]]:
    """Split ``FOLDER@key=value,...`` into the folder and the fields; :class:`ConfigError` for an unknown field."""
    folder, _, wanted = text.partition("@")
    selected: dict[str, str] = {}
    last = ""
    for part in filter(None, wanted.split(",")):
        key, equals, value = part.partition("=")
        if equals and key in _FIELDS:
            selected[key], last = value, key
        elif last:  # a protocol's name has commas
            selected[last] += f",{part}"
        else:
            hint = did_you_mean(key, _FIELDS) if equals else "fields are written key=value, with commas between"
            raise ConfigError(f"{text}: {part!r} is no field of a row", hint)
    return Path(folder), selected


def rows_folder(path: Path) -> Path:
    """Return the folder whose ``rows.json`` is meant by a path: itself, the file's, or the only one below it."""
    if path.name == ROWS and path.is_file():
        return path.parent
    below = [path] if (path / ROWS).is_file() else sorted(one.parent for one in path.rglob(ROWS))
    if len(below) == 1:
        return below[0]
    if not below:
        raise DataError(f"{path}: holds no {ROWS}")
    shown = ", ".join(str(one) for one in below[:4])
    raise ConfigError(f"{path}: holds {len(below)} files {ROWS}", f"name one: {shown}" + (" ..." if below[4:] else ""))


def candidate(folder: Path, wanted: Mapping[str, str], *, seed: int = 0) -> Candidate:
    """Return the result in ``folder`` whose row has the fields ``wanted``; baselines only where ``model`` names one.

    Where rows differ in nothing but the block (and for probes the norm), one is chosen, see above. Raises
    :class:`ConfigError` if none or several other rows are left, :class:`DataError` if they have no records.
    """
    folder = rows_folder(folder)
    recorded, every = read_records(folder), read_rows(folder / ROWS)
    if not recorded:
        raise DataError(f"{folder}: has no per-image records", "run the evaluation again with this version")
    measured = _with_seeds(every, recorded)
    left = {row: records for row, records in measured.items() if _matches(row, wanted)}
    if not left:
        raise ConfigError(f"{folder}: no row with records has {_spelt(wanted) or 'a model'}", _choices(measured))
    if len(left) == 1:
        ((row, records),) = left.items()
        return Candidate(row, row.block, records)
    chosen = best_by_heldout(left)
    free = {"block", "norm"} if chosen else {"block"}
    if keys := _differing(left, set(_SAME + _SAID + ("model", "epoch", "weights")) - free):
        raise ConfigError(f"{folder}: {len(left)} rows differ in {', '.join(keys)}", _choices(left, keys))
    if chosen is not None:
        return Candidate(chosen, f"{chosen.block} (by held-out training images)", left[chosen])
    if any(len(records) > 1 for records in left.values()):
        raise ConfigError(f"{folder}: {len(left)} blocks of several seeds", "name one: block=...")
    by_block = {row.block: records[0].values for row, records in left.items()}
    fit = cross_fitted_best(by_block, seed=seed, lowest=next(iter(left)).metric in LOWER_IS_BETTER)
    row = next(row for row in left if row.block == fit.chosen[0])
    said = " and ".join(dict.fromkeys(fit.chosen))
    records = (ImageRecords(left[row][0].ids, np.asarray(fit.records)),)
    return Candidate(replace(row, value=100 * fit.value, low=None, high=None), f"{said} (cross-fitted)", records)


def compare(a: str, b: str, *, resamples: int = 1000, seed: int = 0) -> RowComparison:
    """Compare two rows, named as above. Raises :class:`ConfigError` or :class:`DataError` if they cannot be paired."""
    first, second = (candidate(*parse_row(text), seed=seed) for text in (a, b))
    if keys := [key for key in _SAME if getattr(first.row, key) != getattr(second.row, key)]:
        said = ", ".join(f"{key} {getattr(first.row, key)!r} and {getattr(second.row, key)!r}" for key in keys)
        raise ConfigError(f"{a} and {b} cannot be compared: {said}")
    ids = first.records[0].ids
    others = [records for one in (first, second) for records in one.records]
    if any(set(records.ids) != set(ids) for records in others):
        common = set.intersection(*(set(records.ids) for records in others))
        raise DataError(f"{a} and {b}: not of the same images: {len(common)} of {len(ids)} in common")
    sides: list[list[Records]] = [[records.of(ids) for records in one.records] for one in (first, second)]
    difference = paired_difference(*sides, resamples=resamples, seed=seed)
    points = replace(difference, value=100 * difference.value, low=100 * difference.low, high=100 * difference.high)
    hits = sides[0][0].ndim == 1 and not np.issubdtype(sides[0][0].dtype, np.floating)
    plain = len(sides[0]) == len(sides[1]) == 1 and hits
    test = mcnemar(sides[0][0], sides[1][0]) if plain else None
    differs = [key for key in _SAID if key != "block" and getattr(first.row, key) != getattr(second.row, key)]
    return RowComparison(first, second, points, test, tuple(differs))


def _with_seeds(
    rows: Sequence[EvalResult], recorded: Mapping[EvalResult, ImageRecords]
) -> dict[EvalResult, tuple[ImageRecords, ...]]:
    """Rows with their records: of one fit, or of the fits of all seeds for the row of their mean."""
    measured: dict[EvalResult, tuple[ImageRecords, ...]] = {
        row: (one,) for row, one in recorded.items() if not row.is_of_a_seed
    }
    for row in rows:
        same = ("metric", "block", "norm", "facet", "protocol")
        if row.deviation is not None and not row.note:
            of_seeds = [one for one in recorded if one.is_of_a_seed and _alike(one, row, same)]
            measured |= {row: tuple(recorded[one] for one in of_seeds)} if of_seeds else {}
    return measured


def _alike(one: EvalResult, other: EvalResult, keys: Iterable[str]) -> bool:
    return all(getattr(one, key) == getattr(other, key) for key in keys)


def _matches(row: EvalResult, wanted: Mapping[str, str]) -> bool:
    if row.is_baseline and "model" not in wanted:
        return False
    return all(str(getattr(row, key)) == value for key, value in wanted.items())


def _differing(rows: Iterable[EvalResult], keys: Iterable[str]) -> list[str]:
    listed = list(rows)
    return sorted(key for key in keys if len({getattr(row, key) for row in listed}) > 1)


def _choices(rows: Iterable[EvalResult], keys: Sequence[str] = ("metric", "block", "norm", "protocol")) -> str:
    listed = list(rows)
    parts = [f"{key}: {', '.join(dict.fromkeys(str(getattr(row, key)) for row in listed))}" for key in keys]
    return "name one after @; " + "; ".join(parts)


def _spelt(wanted: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in wanted.items())
