"""Two results compared over the same images: any two rows, of one study or of two, by the records beside them.

A row is named ``FOLDER``, or ``FOLDER@block=7,norm=final``: a folder that holds ``rows.json`` (or the file itself), and
fields that the row must have. Where several blocks are left, one is chosen (:mod:`dinoskip.decisions.choosing`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import isnan
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dinoskip.decisions.choosing import (
    ALONE,
    BY_CROSS_FITTING,
    BY_HELD_OUT,
    ON_SHOWN,
    TOO_FEW,
    Score,
    choose,
    records_by_row,
)
from dinoskip.decisions.comparing import NetworkScores, Verdict, compared_pair, decide
from dinoskip.errors import ConfigError, DataError, did_you_mean
from dinoskip.results.estimates import LEAST, Difference, Estimate
from dinoskip.results.records import RECORDS, ROWS, ImageRecords, read_records
from dinoskip.results.rows import UNKNOWN_EPOCH, EvalResult, read_rows
from dinoskip.results.statistics import McNemar, are_hits, mcnemar

_SAME = ("metric", "dataset", "split", "classes")  # rows that differ in one of these are not of one thing
_SAID = ("task", "block", "facet", "norm", "protocol", "resolution")  # in these they may differ
_HOW = {
    ALONE: "",
    BY_HELD_OUT: "by held-out training images",
    BY_CROSS_FITTING: "cross-fitted",
    TOO_FEW: "the last: too few images to choose",
    ON_SHOWN: "chosen on the images shown",
}
_FIELDS = tuple(field.name for field in fields(EvalResult))


@dataclass(frozen=True, eq=False)
class Candidate:
    """A result to be compared: its row, which block it is of and how that came about, and its score.

    ``hits`` are those of the images where a single fit at one block has them.
    """

    row: EvalResult
    block: str
    score: Score
    hits: NDArray[np.integer] | None = None

    @property
    def ids(self) -> tuple[str, ...]:
        """The images that it is over, sorted."""
        return self.score.ids

    @property
    def estimate(self) -> Estimate:
        """The score (0..1) with its error over the images."""
        return self.score.estimate

    @property
    def name(self) -> str:
        """The model, its epoch where there is one, and the block."""
        epoch = "" if self.row.epoch == UNKNOWN_EPOCH else f" epoch {self.row.epoch}"
        return f"{self.row.model or 'unnamed'}{epoch}" + (f" block {self.block}" if self.block else "")


@dataclass(frozen=True, eq=False)
class RowComparison:
    """``a`` minus ``b`` in percentage points (errors in their unit), paired over images; for hits McNemar's test, too.

    ``verdict`` is of these two rows alone. ``differs`` names what else is not the same in the two rows: a difference
    may come from it.
    """

    a: Candidate
    b: Candidate
    difference: Difference
    mcnemar: McNemar | None
    verdict: Verdict
    differs: tuple[str, ...]

    @property
    def text(self) -> str:
        """``CorLoc on voc2007 trainval, 60 images: x block 2 - y block 7 = +5.2 [+1.1, +9.0], p 0.01; higher, ...``."""
        row, d = self.a.row, self.difference
        where = f"{row.metric} on {row.dataset} {row.split}, {d.n} images"
        value, low, high = (f"{bound:+{row.digits}}" for bound in (d.value, d.low, d.high))
        line = f"{where}: {self.a.name} - {self.b.name} = {value}" + (
            "" if isnan(d.low) or d.unsure else f" [{low}, {high}]"
        )
        line += f", too few for a test (below {LEAST})" if isnan(d.p) else f", p {d.p:.2g}"
        if self.mcnemar is not None:
            line += f"; McNemar {self.mcnemar.only_a} : {self.mcnemar.only_b}, p {self.mcnemar.p:.2g}"
        why = "" if isnan(d.p) or not self.verdict.why else f": {self.verdict.why}"
        line += f"; {self.verdict.said}{why}"
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
    measured = records_by_row((row for row in every if not row.note), recorded)
    left = {row: records for row, records in measured.items() if _matches(row, wanted)}
    if not left:
        asked = ", ".join(f"{key}={value}" for key, value in wanted.items()) or "a model"
        raise ConfigError(f"{folder}: no row with records has {asked}", _choices(measured))
    norms = all(row.heldout is not None for row in left)  # of a probe the norm is chosen with the block
    free = {"block", "norm"} if norms else {"block"}
    said = set(_SAME + _SAID + ("model", "epoch", "weights")) - free
    if keys := sorted(key for key in said if len({getattr(row, key) for row in left}) > 1):
        raise ConfigError(f"{folder}: {len(left)} rows differ in {', '.join(keys)}", _choices(left, keys))
    if row := next((row for row, records in left.items() if len({frozenset(one.ids) for one in records}) > 1), None):
        raise DataError(f"{row.model} block {row.block}: its seeds are of different images")
    score = choose({f"{row.block} {row.norm}" if norms else row.block: row for row in left}, left, seed)
    assert score is not None  # there are rows
    return _candidate(score)


def _candidate(score: Score) -> Candidate:
    """A score with what is said of its block, and its row with the number that it has there."""
    row, block, how = score.row, score.row.block, _HOW[score.how]
    if score.fitted is not None:
        row, block = replace(row, value=score.value, low=None, high=None), "/".join(score.blocks[:2])
    said = block + (f" ({how})" if how else "")
    if score.fitted is None and len(score.outcomes) == 1 and are_hits(hits := score.outcomes[0].of(score.ids)):
        return Candidate(row, said, score, hits)
    return Candidate(row, said, score)


def compare(a: str, b: str, *, seed: int = 0) -> RowComparison:
    """Compare two rows, named as above. Raises :class:`ConfigError` or :class:`DataError` if they cannot be paired."""
    first, second = (candidate(*parse_row(text), seed=seed) for text in (a, b))
    if keys := [key for key in _SAME if getattr(first.row, key) != getattr(second.row, key)]:
        said = ", ".join(f"{key} {getattr(first.row, key)!r} and {getattr(second.row, key)!r}" for key in keys)
        raise ConfigError(f"{a} and {b} cannot be compared: {said}")
    if first.ids != second.ids:
        common = set(first.ids) & set(second.ids)
        raise DataError(f"{a} and {b}: not of the same images: {len(common)} of {len(first.ids)} in common")
    pair = compared_pair(_network(first), _network(second))
    assert pair is not None  # both have records
    (verdict,) = decide([pair])
    test = None if first.hits is None or second.hits is None else mcnemar(first.hits, second.hits)
    differs = [key for key in _SAID if key != "block" and getattr(first.row, key) != getattr(second.row, key)]
    return RowComparison(first, second, pair.judgement.difference.in_points, test, verdict, tuple(differs))


def _network(side: Candidate) -> NetworkScores:
    return NetworkScores(side.row.model or "unnamed", (side.score,))


def _matches(row: EvalResult, wanted: Mapping[str, str]) -> bool:
    if row.is_baseline and "model" not in wanted:
        return False
    return all(str(getattr(row, key)) == value for key, value in wanted.items())


def _choices(rows: Iterable[EvalResult], keys: Sequence[str] = ("metric", "block", "norm", "protocol")) -> str:
    listed = list(rows)
    parts = [f"{key}: {', '.join(dict.fromkeys(str(getattr(row, key)) for row in listed))}" for key in keys]
    return "name one after @; " + "; ".join(parts)
