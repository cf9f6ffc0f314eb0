"""Per-image records beside result rows, so that any two rows over the same images can be compared image by image.

``records.npz`` lies beside ``rows.json`` and holds the images' ids and, for the rows that have one value an image, an
array of what each image contributes:

- hits, uint8 (n,): whether the image's box hits (CorLoc) or its class is right (k-NN, linear classification, trained
  classifiers); their mean is the row's value, of trained classifiers within a thousandth (stage ``accuracy``)
- scores, float64 (n,): what the image itself scores, in hundredths of the row's unit (0..1 for percent); nan where it
  has none. Their mean over the other images is a hundredth of the row's value
- areas, integers (n, K, 2): of every class, pixels in the intersection and in the union of prediction and label;
  their sums over images give the row's mIoU. Of objects: at each of K overlaps those that are hit, and all (recall)
- detections matched to objects (:class:`dinoskip.results.average_precision.MatchedDetections`), which give the row's
AP.
  ``detections{g}_scores`` and so on are the arrays of group g, ``detections`` says of every row that has some the row,
  the group and the overlaps, so that AP, AP50 and AP75 of the same detections have them once
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dinoskip.errors import DataError
from dinoskip.io.arrays import read_arrays
from dinoskip.io.files import atomic_path
from dinoskip.results.average_precision import MOST_OVERLAPS, MatchedDetections, problem_of
from dinoskip.results.rows import EvalResult, rows_in, write_rows

RECORDS, ROWS = "records.npz", "rows.json"
_ROW, _DETECTIONS = "row", "detections"
_FLAT = tuple(field.name for field in fields(MatchedDetections) if field.name not in {"order", "overlaps"})

Values = NDArray[Any] | MatchedDetections


@dataclass(frozen=True, eq=False)
class ImageRecords:
    """Contribution of n images to a row: ``values`` (n,) or (n, K, 2), or detections, see above, and their ``ids``."""

    ids: tuple[str, ...]
    values: Values

    def of(self, ids: Sequence[str]) -> Values:
        """Return the values of ``ids``, in that order; KeyError for an id that is not there."""
        if self.ids == tuple(ids):
            return self.values
        where = {name: i for i, name in enumerate(self.ids)}
        return self.values[[where[name] for name in ids]]


@dataclass(frozen=True, eq=False)
class RecordedRow:
    """A result row and what each image contributes to it; None for a row that has no value an image."""

    row: EvalResult
    values: Values | None = None


def areas_record(areas: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return (n, K, 2), intersection and union, of areas (n, 3, K): pixels right, predicted and labelled.

    Of 64 bits, for a class may have more than 2^31 of an image's pixels; the file has the smallest type that holds all.
    """
    right, predicted, labelled = (areas[:, i].astype(np.int64) for i in range(3))
    return np.stack([right, predicted + labelled - right], -1)


def write_records(path: Path, ids: Sequence[str], records: Mapping[int, Values]) -> None:
    """Write ``records``, by the number of their row in ``rows.json``, compressed and atomically; always the same bytes.

    Raises ValueError for an array that is not of shape (n,) or (n, K, 2) with n ids, and for detections of another
    number of images, in another order than that of ties, or that :func:`problem_of` finds unsound.
    """
    plain = {row: values for row, values in sorted(records.items()) if isinstance(values, np.ndarray)}
    for row, values in plain.items():
        if values.shape[:1] != (len(ids),) or values.shape[2:] not in {(), (2,)} or values.ndim == 2:
            raise ValueError(f"row {row}: records of shape {values.shape} do not fit {len(ids)} images")
    arrays = {f"{_ROW}{row}": values.astype(_smallest(values)) for row, values in plain.items()}
    arrays |= _detection_arrays(
        {row: values for row, values in sorted(records.items()) if isinstance(values, MatchedDetections)}, len(ids)
    )
    with atomic_path(path) as temporary, open(temporary, "wb") as stream:
        np.savez_compressed(stream, allow_pickle=False, ids=np.array(list(ids), dtype=np.str_), **arrays)


def _detection_arrays(records: Mapping[int, MatchedDetections], images: int) -> dict[str, NDArray[Any]]:
    """The arrays of rows with detections; rows that share them (:meth:`MatchedDetections.at`) share the arrays."""
    groups: dict[tuple[int, ...], int] = {}
    rows: list[tuple[int, int, int, int]] = []
    arrays: dict[str, NDArray[Any]] = {}
    for row, values in records.items():
        key = tuple(id(getattr(values, name)) for name in _FLAT)
        if key not in groups:
            fits = len(values) == images and (np.diff(values.order) > 0).all()
            if problem := problem_of(values) or ("" if fits else f"{len(values)} images in another order or number"):
                raise ValueError(f"row {row}: detections do not fit {images} images: {problem}")
            groups[key] = len(groups)
            for name in _FLAT:
                flat = getattr(values, name)
                small = _smallest(flat, in_order=name == "scores")
                arrays[f"{_DETECTIONS}{groups[key]}_{name}"] = flat.astype(small)
        rows.append((row, groups[key], *values.overlaps))
    return arrays | ({_DETECTIONS: np.array(rows, dtype=np.int32)} if rows else {})


def write_recorded_rows(out: Path, ids: Sequence[str], recorded: Sequence[RecordedRow]) -> list[EvalResult]:
    """Write ``rows.json`` and, beside it, ``records.npz`` of images ``ids`` into ``out``; return the rows."""
    rows = [entry.row for entry in recorded]
    records = {number: entry.values for number, entry in enumerate(recorded) if entry.values is not None}
    write_records(Path(out) / RECORDS, ids, records)
    write_rows(Path(out) / ROWS, rows)
    return rows


def _smallest(values: NDArray[Any], *, in_order: bool = False) -> np.dtype[Any]:
    """The type that holds whole numbers; that of floating ones, or one that keeps their order and which are equal."""
    if not np.issubdtype(values.dtype, np.floating):
        return np.min_scalar_type(int(values.max(initial=0)))
    every = np.unique(values) if in_order else values[:0]
    for small in (np.float16, np.float32) if in_order else ():
        with np.errstate(over="ignore"):
            rounded = every.astype(small)
        if np.isfinite(rounded).all() and (np.diff(rounded) > 0).all():
            return np.dtype(small)
    return np.dtype(np.float64)


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
        detections = _detections({name: stored.pop(name) for name in list(stored) if name.startswith(_DETECTIONS)})
        records: dict[int, Values] = {int(name.removeprefix(_ROW)): stored[name] for name in stored}
        records = dict(sorted((records | detections).items()))
    except (DataError, ValueError, KeyError) as error:
        raise DataError(f"{path}: cannot be read as per-image records: {error}", "run the evaluation again") from error
    if any(not 0 <= number < len(rows) or len(values) != len(ids) for number, values in records.items()):
        raise DataError(f"{path}: does not belong to the rows beside it", "run the evaluation again")
    return {rows[number]: ImageRecords(ids, values) for number, values in records.items()}


def _detections(stored: dict[str, NDArray[Any]]) -> dict[int, MatchedDetections]:
    """The detections of rows, by their number; ValueError or KeyError if they are damaged."""
    rows = stored.pop(_DETECTIONS, np.zeros((0, 4), dtype=np.int32))
    if rows.ndim != 2 or rows.shape[1] != 4 or not np.issubdtype(rows.dtype, np.integer):
        raise ValueError(f"rows of detections of shape {rows.shape}")
    found: dict[int, MatchedDetections] = {}
    groups: dict[int, MatchedDetections] = {}
    for row, group, first, behind in rows.tolist():
        if group not in groups:
            flat = {name: stored[f"{_DETECTIONS}{group}_{name}"] for name in _FLAT}
            flat |= {name: flat[name].astype(np.int64) for name in ("offsets", "classes")}  # they are reckoned with
            every = MatchedDetections(**flat, order=np.arange(len(flat["objects"])), overlaps=(0, MOST_OVERLAPS))
            if problem := problem_of(every):
                raise ValueError(f"detections {group}: {problem}")
            groups[group] = every
        if not 0 <= first < behind <= MOST_OVERLAPS:
            raise ValueError(f"detections of row {row}: overlaps out of range")
        found[row] = groups[group].at(first, behind)
    return found
