"""Means over what images have several of (objects of a video, points of a pair of images), as rows with records."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dinoskip.records import RecordedRow
from dinoskip.results import EvalResult
from dinoskip.statistics import RESAMPLES, mean_iou, percentile_interval, resample_counts

_UNIT = 1_000_000  # records are whole numbers: millionths


def mean_record(sums: ArrayLike, counts: ArrayLike) -> NDArray[np.int64]:
    """Return the record (n, 1, 2) of images whose ``counts`` (n,) things score ``sums`` (n,) in 0..1, in millionths.

    Its score (:func:`dinoskip.statistics.score`) is the mean over all things of all images.
    """
    pair = np.stack([np.asarray(sums, dtype=np.float64), np.asarray(counts, dtype=np.float64)], -1)
    return np.rint(pair * _UNIT).astype(np.int64)[:, None]


def mean_rows(like: EvalResult, records: Iterable[tuple[str, NDArray[np.int64]]], seed: int) -> list[RecordedRow]:
    """Return rows in percent, otherwise as ``like``, of (metric, record), all of the same images.

    Their intervals are by the bootstrap over images, whose draws they share.
    """
    named = list(records)
    drawn: list[list[NDArray[np.float64]]] = [[] for _ in named]
    for times in resample_counts(len(named[0][1]), RESAMPLES, seed):
        for parts, (_, record) in zip(drawn, named, strict=True):
            summed = times @ record[:, 0].astype(np.float64)
            parts.append(mean_iou(summed[:, :1], summed[:, 1:]))
    rows = []
    for parts, (metric, record) in zip(drawn, named, strict=True):
        low, high = percentile_interval(np.concatenate(parts))
        total = record[:, 0].sum(0).astype(np.float64)
        value = float(mean_iou(total[:1], total[1:]))
        rows.append(
            RecordedRow(replace(like, metric=metric, value=100 * value, low=100 * low, high=100 * high), record)
        )
    return rows
