"""Means over what images have several of (objects of a video, points of a pair), with records; means over seeds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dinoskip.records import RecordedRow
from dinoskip.results import EvalResult
from dinoskip.statistics import interval, score

_UNIT = 1_000_000  # records are whole numbers: millionths


def mean_record(sums: ArrayLike, counts: ArrayLike) -> NDArray[np.int64]:
    """Return the record (n, 1, 2) of images whose ``counts`` (n,) things score ``sums`` (n,) in 0..1, in millionths.

    Its score (:func:`dinoskip.statistics.score`) is the mean over all things of all images.
    """
    pair = np.stack([np.asarray(sums, dtype=np.float64), np.asarray(counts, dtype=np.float64)], -1)
    return np.rint(pair * _UNIT).astype(np.int64)[:, None]


def mean_rows(like: EvalResult, records: Iterable[tuple[str, NDArray[np.int64]]]) -> list[RecordedRow]:
    """Return rows in percent, otherwise as ``like``, of (metric, record), with their intervals over images."""
    rows = []
    for metric, record in records:
        low, high = interval(record)
        row = replace(like, metric=metric, value=100 * score(record), low=100 * low, high=100 * high)
        rows.append(RecordedRow(row, record))
    return rows


def mean_row(rows: Sequence[EvalResult]) -> EvalResult:
    """Return the row of the mean over seeds, with the standard deviation (n - 1 in the denominator).

    It has no interval over images: that is of one fit.
    """
    values, heldout = [row.value for row in rows], [row.heldout for row in rows if row.heldout is not None]
    mean = replace(rows[0], value=float(np.mean(values)), deviation=float(np.std(values, ddof=1)), low=None, high=None)
    return replace(mean, heldout=float(np.mean(heldout)) if heldout else None)
