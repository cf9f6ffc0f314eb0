"""Per-image records beside result rows, so that any two rows over the same images can be compared image by image.

``records.npz`` lies beside ``rows.json`` and holds the images' ids and, for the rows that have one value an image, an
array of what each image contributes:

- hits, uint8 (n,): whether the image's box hits (CorLoc) or its class is right (k-NN, linear classification, trained
  classifiers); their mean is the row's value, of trained classifiers within a thousandth (stage ``accuracy``)
- scores, float64 (n,): what the image itself scores, in hundredths of the row's unit (0..1 for percent); nan where it
  has none. Their mean over the other images is a hundredth of the row's value
- areas, integers (n, K, 2): of every class, pixels in the intersection and in the union of prediction and label;
  their sums over images give the row's mIoU. Of objects: at each of K overlaps those that are hit, and all (recall)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dinoskip.arrays import read_arrays
from dinoskip.errors import DataError
from dinoskip.files import atomic_path
from dinoskip.results import EvalResult, rows_in, write_rows

RECORDS, ROWS = "records.npz", "rows.json"
_ROW = "row"


@dataclass(frozen=True, eq=False)
class ImageRecords:
    """What each image contributes to a row: ``values`` (n,) or (n, K, 2), see above; ``ids`` of the n images."""

    ids: tuple[str, ...]
    values: NDArray[Any]

    def of(self, ids: Sequence[str]) -> NDArray[Any]:
        """Return the values of ``ids``, in that order; KeyError for an id that is not there."""
        if self.ids == tuple(ids):
            return self.values
        where = {name: i for i, name in enumerate(self.ids)}
        return self.values[[where[name] for name in ids]]


@dataclass(frozen=True, eq=False)
class RecordedRow:
    """A result row and what each image contributes to it; None for a row that has no value an image."""

    row: EvalResult
    values: NDArray[Any] | None = None


def areas_record(areas: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return (n, K, 2), intersection and union, of areas (n, 3, K): pixels right, predicted and labelled.

    Of 64 bits, for a class may have more than 2^31 of an image's pixels; the file has the smallest type that holds all.
    """
    right, predicted, labelled = (areas[:, i].astype(np.int64) for i in range(3))
    return np.stack([right, predicted + labelled - right], -1)


def write_records(path: Path, ids: Sequence[str], records: Mapping[int, NDArray[Any]]) -> None:
    """Write ``records``, by the number of their row in ``rows.json``, compressed and atomically; always the same bytes.

    Raises ValueError for an array that is not of shape (n,) or (n, K, 2) with n ids.
    """
    for row, values in records.items():
        if values.shape[:1] != (len(ids),) or values.shape[2:] not in {(), (2,)} or values.ndim == 2:
            raise ValueError(f"row {row}: records of shape {values.shape} do not fit {len(ids)} images")
    arrays = {f"{_ROW}{row}": values.astype(_smallest(values)) for row, values in sorted(records.items())}
    with atomic_path(path) as temporary, open(temporary, "wb") as stream:
        np.savez_compressed(stream, allow_pickle=False, ids=np.array(list(ids), dtype=np.str_), **arrays)


def write_recorded_rows(out: Path, ids: Sequence[str], recorded: Sequence[RecordedRow]) -> list[EvalResult]:
    """Write ``rows.json`` and, beside it, ``records.npz`` of images ``ids`` into ``out``; return the rows."""
    rows = [entry.row for entry in recorded]
    records = {number: entry.values for number, entry in enumerate(recorded) if entry.values is not None}
    write_records(Path(out) / RECORDS, ids, records)
    write_rows(Path(out) / ROWS, rows)
    return rows


def _smallest(values: NDArray[Any]) -> np.dtype[Any]:
    if np.issubdtype(values.dtype, np.floating):
        return np.dtype(np.float64)
    return np.min_scalar_type(int(values.max(initial=0)))


def read_records(folder: Path) -> dict[EvalResult, ImageRecords]:
    """Return the rows of ``folder/rows.json`` that have records, with them, in order; empty without either file.

    Raises :class:`DataError` if the file is damaged or of other rows.
    """
    path, rows = Path(folder) / RECORDS, rows_in(Path(folder))
    if not path.is_file():
        return {}
    try:
        stored = read_arrays(path)
        ids = tuple(stored.pop("ids").tolist())
        records = {int(name.removeprefix(_ROW)): stored[name] for name in stored}
        records = dict(sorted(records.items()))
    except (DataError, ValueError, KeyError) as error:
        raise DataError(f"{path}: cannot be read as per-image records: {error}", "run the evaluation again") from error
    if any(number >= len(rows) or len(values) != len(ids) for number, values in records.items()):
        raise DataError(f"{path}: does not belong to the rows beside it", "run the evaluation again")
    return {rows[number]: ImageRecords(ids, values) for number, values in records.items()}
