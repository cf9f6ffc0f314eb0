"""Rows of measures that every image has by itself: a number is their mean over images (depth, normals)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dinoskip.errors import DataError
from dinoskip.records import RecordedRow
from dinoskip.results import EvalResult
from dinoskip.statistics import interval
from dinoskip.tasks import is_error

F64 = NDArray[np.float64]


def _mean(values: F64) -> float:
    return float(np.nanmean(values)) if np.isfinite(values).any() else float("nan")


def scored_rows(like: EvalResult, names: Sequence[str], scores: F64) -> list[RecordedRow]:
    """Return ``like`` once for each measure of ``names``, with its mean over images, interval and records.

    ``scores`` (n, M) are in the measure's own unit for errors (:func:`dinoskip.tasks.is_error`), else shares
    (0..1), whose rows are in percent.
    """
    units = np.array([1.0 if is_error(name) else 100.0 for name in names])
    scaled = scores * units
    intervals = [interval(column) for column in scaled.T]
    counts = np.isfinite(scores).sum(0).tolist()
    rows = [
        replace(like, metric=name, value=_mean(scaled[:, i]), low=low, high=high, n=counts[i])
        for i, (name, (low, high)) in enumerate(zip(names, intervals, strict=True))
    ]
    return [RecordedRow(row, scaled[:, i] / 100) for i, row in enumerate(rows)]


def lowest_trials(errors: F64, names: Sequence[str], what: str) -> list[int]:
    """Return for each group the trial of the lowest mean error, of ``errors`` (G, L, n); the first of equals.

    ``names`` are the groups', ``what`` the task's. Raises :class:`DataError` for a group of which no trial has a score.
    """
    there = np.isfinite(errors)
    count = there.sum(-1)
    means = np.where(count > 0, np.where(there, errors, 0.0).sum(-1) / np.maximum(count, 1), np.inf)
    for name, own in zip(names, means, strict=True):
        if not np.isfinite(own).any():
            raise DataError(f"{what}: block {name}: no head has a score", "lower the learning rates or check labels")
    return [int(one) for one in means.argmin(1)]
