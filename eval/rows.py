"""Result rows of evaluations: what the rows of a network on a data set share, and rows of hits, areas and means.

Areas (n, 3, K) are of every image and class the pixels that are right, predicted and labelled
(``ConfusionMatrix.areas``). Intervals are at 95 %, over images: they say how much a score would vary with other images
drawn like these, not what another seed of training would change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dinoskip.results.records import RecordedRow, Values, areas_record
from dinoskip.results.rows import HELD_OUT, ON_VALIDATION, SHOWN, EvalResult, best_by_heldout, normalisation_of
from dinoskip.results.statistics import Interval, clopper_pearson, explained_interval, score
from dinoskip.runtime.arithmetic import kernels
from dinoskip.runtime.console import log
from dinoskip.settings.tasks import TaskInputs, is_error, range_of
from eval.metrics import scores_of_areas

T = TypeVar("T")
_UNIT = 1_000_000  # records are whole numbers: millionths


@dataclass(frozen=True)
class Trials(Generic[T]):
    """Trials of a head: the one ``chosen``, on held-out images or without any on validation, and the ``best`` there.

    ``heldout`` is the chosen one's score on held-out images in percent, None without any, for row number ``at``.
    """

    chosen: T
    best: T
    several: bool
    heldout: float | None
    at: int = 0


def row_like(given: TaskInputs, task: str, metric: str = "", **fields: Any) -> EvalResult:
    """A row without block and value, of the scored split's features, or of the network; ``fields`` are others of it."""
    scored = list(given.labels.values())[-1]
    about = {"dataset": getattr(scored, "name", ""), "split": getattr(scored, "split", ""), "seed": given.seed}
    about["kernels"] = kernels()
    if given.features:
        features = list(given.features.values())[-1]
        about |= {"n": len(features), "facet": features.facet, "norm": features.norm}
        about |= {"resolution": features.transform.label, "weights": features.weights_hash}
        about |= {"normalisation": features.normalisation, "positions": features.positions}
    else:
        network = given.backbone
        about |= {"n": len(scored), "facet": given.facets[0], "weights": network.weights_hash}
        about |= {"normalisation": normalisation_of(network.mean, network.std), "positions": network.positions}
    row = EvalResult(**{"metric": metric, "value": 0.0, "task": task, "block": "", **about, **fields})
    return row.with_context(given.context)


def baseline_rows(name: str, rows: Iterable[RecordedRow]) -> list[RecordedRow]:
    """Rows, and their records, as those of the rule ``name`` (:meth:`EvalResult.baseline`)."""
    of_rule = [(rec, rec.row.baseline(name, rec.row.value, rec.row.low, rec.row.high)) for rec in rows]
    return [replace(rec, row=replace(row, no_interval=rec.row.no_interval)) for rec, row in of_rule]


def log_best(recorded: Sequence[RecordedRow], metric: str) -> None:
    """Say which block has the best value of ``metric``, and which one held-out training images choose."""
    rows = [record.row for record in recorded if record.row.metric == metric and not record.row.is_baseline]
    first = [row for row in rows if row.note == rows[0].note]
    best = max(first, key=lambda row: np.nan_to_num(row.ranking_value, nan=-np.inf))
    log.info("%s: best is block %s with %s %s", best.task, best.block, best.shown, metric)
    if (chosen := best_by_heldout(first)) is not None:
        text = "%s: chosen by held-out training images is block %s with %s %s"
        log.info(text, chosen.task, chosen.block, chosen.shown, metric)


def percent_row(
    template: EvalResult, metric: str, value: float, found: Interval, record: Values | None = None
) -> RecordedRow:
    """Return ``template`` with a value (0..1) of a metric and its interval, in percent, or why there is none."""
    low, high = (100 * end for end in found.ends)
    about: dict[str, Any] = {"value": 100 * float(value), "low": low, "high": high, "no_interval": found.why}
    return RecordedRow(replace(template, metric=metric, **about), record)


def hits_row(template: EvalResult, hits: ArrayLike) -> RecordedRow:
    """Return ``template`` with the share of hits, bool (n,), as its value in percent, and their exact interval."""
    flags = np.asarray(hits, dtype=bool)
    value = flags.mean() if flags.size else float("nan")
    found = Interval(*clopper_pearson(int(flags.sum()), flags.size))
    return percent_row(template, template.metric, value, found, flags.astype(np.uint8))


def miou_interval(areas: NDArray[np.integer]) -> Interval:
    """Return the interval (0..1) of the mIoU over a data set, of areas (n, 3, K); nan, and why, where there is none.

    The mIoU is of the classes of the reported set (:func:`dinoskip.results.statistics.explained_interval`).
    """
    return explained_interval(areas_record(areas), areas[:, 2].sum(0, dtype=np.int64))


def miou_row(template: EvalResult, areas: NDArray[np.integer]) -> RecordedRow:
    """Return ``template`` with the mIoU in percent and its interval, or why there is none, of areas (n, 3, K)."""
    miou = scores_of_areas(areas.sum(0, dtype=np.int64)).miou
    return percent_row(template, template.metric, miou, miou_interval(areas), areas_record(areas))


def segmentation_rows(template: EvalResult, areas: NDArray[np.integer]) -> list[RecordedRow]:
    """Return the rows of mIoU, mAcc and aAcc, otherwise as ``template`` (of mIoU), of areas (n, 3, K)."""
    scores = scores_of_areas(areas.sum(0, dtype=np.int64))
    others = (("mAcc", scores.macc), ("aAcc", scores.aacc))
    rows = [RecordedRow(replace(template, metric=name, value=100 * value)) for name, value in others]
    return [miou_row(template, areas), *rows]


def scored_rows(template: EvalResult, names: Sequence[str], scores: NDArray[np.float64]) -> list[RecordedRow]:
    """Return ``template`` once for each measure of ``names``, with its mean over images, interval and records.

    ``scores`` (n, M), NaN where an image has none, are in the measure's own unit for errors
    (:func:`dinoskip.settings.tasks.is_error`), else shares (0..1), whose rows are in percent. Intervals of errors are
    on the log scale and end where the measure does (:func:`dinoskip.settings.tasks.range_of`).
    """
    rows = []
    for name, values in zip(names, scores.T, strict=True):
        there, errors = np.isfinite(values), is_error(name)
        scale = 1.0 if errors else 100.0
        found = explained_interval(values, errors=errors)
        low, high = map(float, np.clip(scale * np.array(found.ends), *range_of(name)))
        mean = float(np.nanmean(scale * values)) if there.any() else float("nan")
        row = replace(template, metric=name, value=mean, low=low, high=high, n=int(there.sum()), no_interval=found.why)
        rows.append(RecordedRow(row, scale * values / 100))
    return rows


def chosen_rows(
    template: EvalResult, rows_of: Callable[[EvalResult, T], list[RecordedRow]], trials: Trials[T]
) -> list[RecordedRow]:
    """Return the rows of the chosen trial, and of several trials those of the best on validation, without records.

    ``rows_of(like, trial)`` are those of one. Without held-out images the choice is on validation; the rows say so
    (``selected`` and their note).
    """
    noted = replace(template, note=ON_VALIDATION, selected=SHOWN)
    if trials.heldout is None:
        return rows_of(noted if trials.several else template, trials.chosen)
    rows = rows_of(replace(template, selected=HELD_OUT) if trials.several else template, trials.chosen)
    rows[trials.at] = replace(rows[trials.at], row=replace(rows[trials.at].row, heldout=trials.heldout))
    return rows + ([replace(record, values=None) for record in rows_of(noted, trials.best)] if trials.several else [])


def mean_record(sums: ArrayLike, counts: ArrayLike) -> NDArray[np.int64]:
    """Return the record (n, 1, 2) of images whose ``counts`` (n,) things score ``sums`` (n,) in 0..1, in millionths.

    Its score (:func:`dinoskip.results.statistics.score`) is the mean over all things of all images.
    """
    pair = np.stack([np.asarray(sums, dtype=np.float64), np.asarray(counts, dtype=np.float64)], -1)
    return np.rint(pair * _UNIT).astype(np.int64)[:, None]


def mean_rows(template: EvalResult, records: Iterable[tuple[str, NDArray[np.int64]]]) -> list[RecordedRow]:
    """Return rows in percent, otherwise as ``template``, of (metric, record), with their intervals over images."""
    return [
        percent_row(template, metric, score(record), explained_interval(record), record) for metric, record in records
    ]


def rows_of_seeds(fits: Sequence[Sequence[RecordedRow]], seeds: Iterable[int]) -> list[RecordedRow]:
    """Rows of the means over seeds, then those of each, ``seed N`` in their note; of one fit its rows as they are."""
    if len(fits) == 1:
        return list(fits[0])
    rows = [RecordedRow(mean_row([record.row for record in same])) for same in zip(*fits, strict=True)]
    for seed, fit in zip(seeds, fits, strict=True):
        notes = [f"{record.row.note}, seed {seed}".lstrip(", ") for record in fit]
        rows += [
            replace(record, row=replace(record.row, seed=seed, note=note))
            for record, note in zip(fit, notes, strict=True)
        ]
    return rows


def mean_row(rows: Sequence[EvalResult]) -> EvalResult:
    """Return the row of the mean over seeds, with the standard deviation (n - 1 in the denominator).

    It has no interval over images: that is of one fit.
    """
    values, heldout = [row.value for row in rows], [row.heldout for row in rows if row.heldout is not None]
    mean = replace(rows[0], value=float(np.mean(values)), deviation=float(np.std(values, ddof=1)), low=None, high=None)
    return replace(mean, heldout=float(np.mean(heldout)) if heldout else None, no_interval="")
