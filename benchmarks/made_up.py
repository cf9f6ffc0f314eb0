"""Made-up images and what a network of a given merit scores on them: every kind of measure that pages compare.

The merit of a network on an image is a normal number, of variance 1 over images; a **shift** moves it on all of them.
:func:`unit` is the shift that moves a measure's expected score by the standard error of a difference between two such
networks on different images, which is the square root of 2 times that of one score: what gaps and the luck of training
are counted in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from dinoskip.results.average_precision import matched_detections, mean_average_precision
from dinoskip.results.records import RecordedRow
from dinoskip.results.rows import EvalResult
from dinoskip.results.statistics import Interval, explained_interval
from eval.rows import hits_row, mean_record, mean_rows, miou_row, percent_row, scored_rows

F64 = NDArray[np.float64]
_MANY = 2000  # images, of which the expected score is taken: intervals are not asked for


@dataclass(frozen=True, eq=False)
class Images:
    """Images that all networks share: how ``hard`` each is (n,), pixels of classes (n, K), numbers of objects."""

    hard: F64
    labelled: NDArray[np.int64]
    objects: NDArray[np.int64]


def images(kind: str, n: int, rng: np.random.Generator) -> Images:
    """Draw images: objects have a geometric number, classes the frequency k^-1.2 beside one that is everywhere."""
    hard, objects = rng.standard_normal(n), rng.geometric(0.4, n)
    classes = int(kind.split()[1]) if kind.startswith("mIoU") else 0
    frequency = np.arange(1, classes + 1) ** -1.2
    there = rng.random((n, classes)) < np.minimum(1, 2.0 * frequency / frequency.sum() if classes else frequency)
    there[:, :1] = True
    pixels = np.ceil(300 * rng.lognormal(0, 1, (n, classes))).astype(np.int64) * there
    return Images(hard, pixels, objects)


Maker = Callable[[EvalResult, Images, F64, np.random.Generator], RecordedRow]


def _corloc(like: EvalResult, _: Images, merit: F64, __: np.random.Generator) -> RecordedRow:
    return hits_row(like, merit > 0)


def _pck(like: EvalResult, _: Images, merit: F64, __: np.random.Generator) -> RecordedRow:
    return scored_rows(like, (like.metric,), expit(merit)[:, None])[0]


def _delta(like: EvalResult, _: Images, merit: F64, rng: np.random.Generator) -> RecordedRow:
    """8 % of the images fail, near 0.25, the others score 0.95."""
    noise = 0.5 * rng.standard_normal(len(merit))
    scores = expit(np.where(merit < -1.405, -1.1, 3.0) + noise)  # -1.405: 8 % of a normal distribution lie below
    return scored_rows(like, (like.metric,), scores[:, None])[0]


def _normals(like: EvalResult, _: Images, merit: F64, __: np.random.Generator) -> RecordedRow:
    """Low shares with a few high ones."""
    return scored_rows(like, (like.metric,), expit(2 * merit - 3)[:, None])[0]


def _rmse(like: EvalResult, _: Images, merit: F64, __: np.random.Generator) -> RecordedRow:
    """Lognormal, the deviation of the logs 1."""
    return scored_rows(like, (like.metric,), np.exp(-merit)[:, None])[0]


def _jf(like: EvalResult, shown: Images, merit: F64, rng: np.random.Generator) -> RecordedRow:
    """Mean over objects, of which a video has one to many."""
    which = np.repeat(np.arange(len(merit)), shown.objects)
    scores = expit(1.0 + 1.5 * merit[which] + 0.7 * rng.standard_normal(len(which)))
    sums = np.bincount(which, scores, len(merit))
    return mean_rows(like, [(like.metric, mean_record(sums, shown.objects))])[0]


def _miou(like: EvalResult, shown: Images, merit: F64, rng: np.random.Generator) -> RecordedRow:
    """Half of what is wrong is taken for another class, mostly a rarer one; skill differs by class."""
    labelled = shown.labelled
    classes = labelled.shape[1]
    skill = np.random.default_rng(classes).normal(0.5, 1.0, classes)  # of the classes, so the same in every study
    confused = np.random.default_rng(classes + 1).permutation(classes)
    cell = skill + merit[:, None] + 0.7 * rng.standard_normal(labelled.shape)
    right = np.rint(labelled * expit(cell)).astype(np.int64)
    predicted = right.copy()
    predicted[:, confused] += (labelled - right) // 2
    return miou_row(like, np.stack([right, predicted, labelled], 1))


def _ap(like: EvalResult, shown: Images, merit: F64, rng: np.random.Generator) -> RecordedRow:
    """Objects found or not, and false boxes, ranked over all images, as records of matched detections."""
    which = np.repeat(np.arange(len(merit)), shown.objects)
    hit = merit[which] + 0.7 * rng.standard_normal(len(which)) > -0.5
    false = rng.integers(0, len(merit), len(which))
    confidence = np.r_[np.where(hit, 1.0, -9.0) + rng.standard_normal(len(which)), rng.standard_normal(len(which))]
    kept = np.flatnonzero(confidence > -5)
    hits, of = np.r_[hit, np.zeros(len(which), bool)][kept], np.r_[which, false][kept]
    records = matched_detections(
        of, confidence[kept], np.zeros(len(kept)), hits[None], np.zeros((1, len(kept)), bool), shown.objects[:, None]
    )
    value = mean_average_precision(records)
    found = Interval(np.nan, np.nan) if len(merit) >= _MANY else explained_interval(records)
    return percent_row(like, like.metric, value, found, records)


@dataclass(frozen=True, eq=False)
class Kind:
    """A kind of measure: the metric and task of its rows, and what makes them."""

    metric: str
    task: str
    make: Maker


KINDS: Mapping[str, Kind] = {
    "CorLoc": Kind("CorLoc", "tokencut", _corloc),
    "PCK": Kind("PCK@0.1 per image", "correspond", _pck),
    "mIoU 21": Kind("mIoU", "probe", _miou),
    "mIoU 150": Kind("mIoU", "probe", _miou),
    "J&F": Kind("J&F", "video", _jf),
    "delta1": Kind("delta1", "depth", _delta),
    "normals": Kind("within 11.25", "normals", _normals),
    "AP": Kind("AP50", "objects", _ap),
    "RMSE": Kind("RMSE", "depth", _rmse),
}
ON_PAGES = tuple(kind for kind in KINDS if kind != "RMSE")
"""Kinds whose metric is a task's headline: only these are compared on pages."""


def row_of(kind: str, shown: Images, merit: F64, rng: np.random.Generator, like: EvalResult) -> RecordedRow:
    """The row, by the functions that write rows of evaluations, and records of a network of ``merit`` (n,)."""
    return KINDS[kind].make(like, shown, merit, rng)


def blank(kind: str, n: int) -> EvalResult:
    """A row without a value."""
    return EvalResult(KINDS[kind].metric, 0.0, KINDS[kind].task, "1", "set", "val", n)


def _scores(kind: str, n: int, shift: float, count: int, seed: int) -> F64:
    """The scores of networks on ``count`` draws of n images, in the row's unit."""
    rng, values = np.random.default_rng([seed, n]), []
    for _ in range(count):
        shown = images(kind, n, rng)
        merit = (shown.hard + rng.standard_normal(n)) / math.sqrt(2) + shift
        values.append(row_of(kind, shown, merit, rng, blank(kind, n)).row.value)
    return np.array(values)


@cache
def expected(kind: str, shift: float = 0.0) -> float:
    """The score of a network on very many images, in the row's unit; with the same images for every shift."""
    return float(_scores(kind, _MANY, shift, 2 if kind.startswith("mIoU") else 20, 1).mean())


@cache
def unit(kind: str, n: int) -> float:
    """The shift of merit that is one standard error of a difference, see above."""
    count = 100 if n < 1000 else 30
    slope = (expected(kind, 0.25) - expected(kind, -0.25)) / 0.5
    return math.sqrt(2) * float(_scores(kind, n, 0.0, count, 2).std(ddof=1)) / abs(slope)
