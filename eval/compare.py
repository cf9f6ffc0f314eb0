"""Two results compared over the same images: any two rows, of one study or of two, by the records beside them.

A row is named ``FOLDER``, or ``FOLDER@block=7,norm=final``: a folder that holds ``rows.json`` (or the file itself), and
fields that the row must have. Where several blocks are left, one is chosen without the images that are reported: a
probe's by its held-out training images, others by cross-fitting, or of fewer than 30 images it is the last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import isnan
from operator import attrgetter
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dinoskip.errors import ConfigError, DataError, did_you_mean
from dinoskip.estimates import LEAST, LEAST_TO_CHOOSE, Difference, Estimate, cross_fitted_best, difference, estimate
from dinoskip.records import RECORDS, ROWS, ImageRecords, read_records
from dinoskip.results import UNKNOWN_EPOCH, EvalResult, best_by_heldout, read_rows
from dinoskip.statistics import McNemar, are_hits, mcnemar
from dinoskip.tasks import is_error

_SAME = ("metric", "dataset", "split", "classes")  # rows that differ in one of these are not of one thing
_SAID = ("task", "block", "facet", "norm", "protocol", "resolution")  # in these they may differ
_FIELDS = tuple(field.name for field in fields(EvalResult))


@dataclass(frozen=True, eq=False)
class Candidate:
    """A result to be compared: its row, how its block came about, and its estimate over the images ``ids``, sorted.

    ``hits`` are those of the images where a single fit at one block has them.
    """

    row: EvalResult
    block: str
    ids: tuple[str, ...]
    estimate: Estimate
    hits: NDArray[np.integer] | None = None

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
        """The line ``CorLoc on voc2007 trainval, 60 images: x block 2 - y block 7 = +5.2 [+1.1, +9.0], p 0.01``."""
        row, d = self.a.row, self.difference
        where = f"{row.metric} on {row.dataset} {row.split}, {d.n} images"
        value, low, high = (f"{bound:+{row.digits}}" for bound in (d.value, d.low, d.high))
        line = f"{where}: {self.a.name} - {self.b.name} = {value}" + ("" if isnan(d.low) else f" [{low}, {high}]")
        line += f", too few for a test (below {LEAST})" if isnan(d.p) else f", p {d.p:.2g}"
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


def rows_with_records(path: Path) -> tuple[list[EvalResult], dict[EvalResult, ImageRecords]]:
    """Return the rows that a path means, and the per-image records of those that have them.

    The path is a folder with ``rows.json``, that file, or the folder of a study or command, whose rows lie in one file
    and whose records lie with the stages below. Raises :class:`DataError` where there are no rows or no records.
    """
    folder = path.parent if path.name == ROWS else path
    places = [folder] if (folder / RECORDS).is_file() else sorted(file.parent for file in folder.rglob(RECORDS))
    recorded = {row: records for place in places for row, records in read_records(place).items()}
    if (folder / ROWS).is_file():
        rows = read_rows(folder / ROWS)
        recorded = {row: recorded[row] for row in rows if row in recorded}
    else:
        rows = [row for place in places for row in read_rows(place / ROWS)]
    if not rows and next(folder.rglob(ROWS), None) is None:
        raise DataError(f"{path}: holds no {ROWS}")
    if not recorded:
        raise DataError(f"{path}: has no per-image records", "run the evaluation again with this version")
    return rows, recorded


def candidate(folder: Path, wanted: Mapping[str, str], *, seed: int = 0) -> Candidate:
    """Return the result in ``folder`` whose row has the fields ``wanted``; baselines only where ``model`` names one.

    Where rows differ in nothing but the block (and for probes the norm), one is chosen, see above. Raises
    :class:`ConfigError` if none or several other rows are left, :class:`DataError` if they have no records.
    """
    every, recorded = rows_with_records(folder)
    measured = _with_seeds(every, recorded)
    left = {row: records for row, records in measured.items() if _matches(row, wanted)}
    if not left:
        asked = ", ".join(f"{key}={value}" for key, value in wanted.items()) or "a model"
        raise ConfigError(f"{folder}: no row with records has {asked}", _choices(measured))
    if len(left) == 1:
        ((row, records),) = left.items()
        return _fixed(row, row.block, records)
    chosen = best_by_heldout(left)
    free = {"block", "norm"} if chosen else {"block"}
    said = set(_SAME + _SAID + ("model", "epoch", "weights")) - free
    if keys := sorted(key for key in said if len({getattr(row, key) for row in left}) > 1):
        raise ConfigError(f"{folder}: {len(left)} rows differ in {', '.join(keys)}", _choices(left, keys))
    if chosen is not None:
        return _fixed(chosen, f"{chosen.block} (by held-out training images)", left[chosen])
    last = max(left, key=lambda row: int(row.block) if row.block.isdecimal() else 0)
    if len(left[last][0].ids) < LEAST_TO_CHOOSE:
        return _fixed(last, f"{last.block} (the last: too few images to choose)", left[last])
    if any(len(records) > 1 for records in left.values()):
        raise ConfigError(f"{folder}: {len(left)} blocks of several seeds", "name one: block=...")
    ids = tuple(sorted(left[last][0].ids))
    by_block = {row.block: records[0].of(ids) for row, records in left.items()}
    fit = cross_fitted_best(by_block, seed=seed, lowest=is_error(last.metric))
    most = next(iter(fit.blocks))
    row = replace(next(row for row in left if row.block == most), value=100 * fit.estimate.value, low=None, high=None)
    share = "" if len(fit.blocks) == 1 else f" in {fit.blocks[most]:.0%}"
    return Candidate(row, f"{most} (cross-fitted{share})", ids, fit.estimate)


def _fixed(row: EvalResult, block: str, records: Sequence[ImageRecords]) -> Candidate:
    ids = tuple(sorted(records[0].ids))
    if any(set(record.ids) != set(ids) for record in records):
        raise DataError(f"{row.model} block {row.block}: its seeds are of different images")
    values = [record.of(ids) for record in records]
    hits = values[0] if len(values) == 1 and are_hits(values[0]) else None
    return Candidate(row, block, ids, estimate(values), hits)


def compare(a: str, b: str, *, seed: int = 0) -> RowComparison:
    """Compare two rows, named as above. Raises :class:`ConfigError` or :class:`DataError` if they cannot be paired."""
    first, second = (candidate(*parse_row(text), seed=seed) for text in (a, b))
    if keys := [key for key in _SAME if getattr(first.row, key) != getattr(second.row, key)]:
        said = ", ".join(f"{key} {getattr(first.row, key)!r} and {getattr(second.row, key)!r}" for key in keys)
        raise ConfigError(f"{a} and {b} cannot be compared: {said}")
    if first.ids != second.ids:
        common = set(first.ids) & set(second.ids)
        raise DataError(f"{a} and {b}: not of the same images: {len(common)} of {len(first.ids)} in common")
    apart = difference([first.estimate], [second.estimate])
    points = replace(apart, value=100 * apart.value, low=100 * apart.low, high=100 * apart.high)
    test = None if first.hits is None or second.hits is None else mcnemar(first.hits, second.hits)
    differs = [key for key in _SAID if key != "block" and getattr(first.row, key) != getattr(second.row, key)]
    return RowComparison(first, second, points, test, tuple(differs))


def _with_seeds(
    rows: Sequence[EvalResult], recorded: Mapping[EvalResult, ImageRecords]
) -> dict[EvalResult, tuple[ImageRecords, ...]]:
    """Rows with their records: of one fit, or of the fits of all seeds for the row of their mean."""
    measured: dict[EvalResult, tuple[ImageRecords, ...]] = {
        row: (records,) for row, records in recorded.items() if not row.is_of_a_seed
    }
    same = attrgetter("metric", "block", "norm", "facet", "protocol")
    for row in rows:
        if row.deviation is not None and not row.note:
            of_seeds = [other for other in recorded if other.is_of_a_seed and same(other) == same(row)]
            measured |= {row: tuple(recorded[seed_row] for seed_row in of_seeds)} if of_seeds else {}
    return measured


def _matches(row: EvalResult, wanted: Mapping[str, str]) -> bool:
    if row.is_baseline and "model" not in wanted:
        return False
    return all(str(getattr(row, key)) == value for key, value in wanted.items())


def _choices(rows: Iterable[EvalResult], keys: Sequence[str] = ("metric", "block", "norm", "protocol")) -> str:
    listed = list(rows)
    parts = [f"{key}: {', '.join(dict.fromkeys(str(getattr(row, key)) for row in listed))}" for key in keys]
    return "name one after @; " + "; ".join(parts)
