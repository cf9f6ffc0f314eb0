"""Statistics of scores over units (images, videos, pairs): scores of records, intervals of 95 %, exact tests, Holm.

Records are what units contribute to a score (:mod:`dinoskip.results.records`): hits (n,) or scores of their own (n,),
whose score is their mean, without units that have none (nan), or areas (n, K, 2), whose score is the mIoU of their
sums, or detections (:mod:`dinoskip.results.average_precision`), whose score is their AP.
Scores are in 0..1, or in hundredths of the row's unit. Differences are in :mod:`dinoskip.results.estimates`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeGuard

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import bdtr, betaincinv, expit, logit, stdtrit

from dinoskip.results.average_precision import MatchedDetections, bias_of_halves, mean_average_precision, without_each
from dinoskip.runtime.randomness import numpy_rng

F64 = NDArray[np.float64]
Arrays = NDArray[np.integer] | NDArray[np.bool_] | NDArray[np.floating]
Records = Arrays | MatchedDetections
ENDS = (0.025, 0.975)  # of 95 % intervals
_Z = 1.959963984540054  # the normal distribution's 97.5 % point
_EDGE = 1e-4  # a mIoU nearer to 0 or 1 has no logit
MOST_LONE = 0.1
"""Share of the classes that may lie in a single unit each where a mIoU has an interval."""
_BEYOND = 2.5  # errors: how much farther from the mean than the largest the unit that is added lies; with a deviation
# of their logs of 1 the interval of 6 images then holds the mean in 95 % of samples, in 88 % without the unit
_ROUNDING = 1e-9
_HALVES = 20  # splits whose mean says how AP changes with the number of images, and fewer of more than 1,000 images
MOST_ALONE = 0.2
"""Share of the classes with all their objects in one image above which AP has no interval (benchmarks/ap_intervals)."""


def wilson(hits: float, n: float) -> tuple[float, float]:
    """Return the interval (0..1) of a share of ``hits`` in ``n`` (Wilson 1927); nan if n is 0.

    It has a width at 0 and n hits too: 0 of 60 is [0, 0.06].
    """
    if not 0 <= hits <= n:
        raise ValueError(f"{hits} hits of {n}")
    if n == 0:
        return math.nan, math.nan
    share, z2 = hits / n, _Z * _Z
    centre = share + z2 / (2 * n)
    half = _Z * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    low, high = (centre - half) / (1 + z2 / n), (centre + half) / (1 + z2 / n)
    return (0.0 if hits == 0 else low), (1.0 if hits == n else high)


def score(records: Records) -> float:
    """Return the score (0..1) of records: the mean of hits, the mIoU of areas, or AP; nan for none."""
    if isinstance(records, MatchedDetections):
        return mean_average_precision(records)
    inside, every = as_areas(records)
    return float(mean_iou(inside.sum(0), every.sum(0)))


def as_areas(records: Arrays) -> tuple[F64, F64]:
    """Return intersections and unions (n, K) of records; hits and scores of their own are areas of one class."""
    if records.ndim == 3:
        return records[..., 0].astype(np.float64), records[..., 1].astype(np.float64)
    values = records.astype(np.float64)[:, None]
    known = np.isfinite(values)
    return np.where(known, values, 0.0), known.astype(np.float64)


def are_hits(records: Records) -> TypeGuard[NDArray[np.integer]]:
    """Whether records are hits (n,): whole numbers 0 and 1."""
    return isinstance(records, np.ndarray) and records.ndim == 1 and not np.issubdtype(records.dtype, np.floating)


def mean_iou(intersection: F64, union: F64) -> F64:
    """Return the mean IoU (...,) of areas (..., K) over the classes that have a union; nan where none has."""
    has_union = union > 0
    iou = np.divide(intersection, union, out=np.zeros_like(intersection), where=has_union)
    count = has_union.sum(-1)
    mean: F64 = np.divide(iou.sum(-1), count, out=np.full(count.shape, np.nan), where=count > 0)
    return mean


@dataclass(frozen=True, eq=False)
class Jackknife:
    """A score without each of its units (Tukey 1958): ``value``, and what each unit contributes to its error.

    ``parts`` (n, K) are pseudo-values less the score, by class: n - 1 times how much the score is lower without the
    unit. Their sums over classes have the score's standard deviation over units. ``lone`` (K,) are classes with all
    their area in one unit, which have no such part, ``sizes`` (K,) of how many equal units each class is (0: absent).
    """

    value: float
    parts: F64
    lone: NDArray[np.bool_]
    sizes: F64

    @property
    def bias(self) -> float:
        """Expected excess of the score over that of the whole population of units (Quenouille 1956)."""
        return -float(self.parts.sum(1).mean()) if len(self.parts) else 0.0


def jackknife(records: Records) -> Jackknife:
    """Return the delete-one jackknife of records' score, classes of the whole set held fixed: without its only unit a
    class keeps its IoU or AP. Memory: n x K numbers. That of AP is to first order."""
    if isinstance(records, MatchedDetections):
        without = without_each(records)
        return Jackknife(without.value, without.parts, without.lone, without.sizes)
    inside, every = as_areas(records)
    total, area = inside.sum(0), every.sum(0)
    has_area = area > 0
    lone = has_area & (area - every <= 0).any(0)
    squares = np.square(np.divide(every, area, out=np.zeros_like(every), where=has_area)).sum(0)
    sizes = np.divide(1.0, squares, out=np.zeros_like(squares), where=squares > 0)
    parts = parts_of_areas(inside, every, total, area)
    return Jackknife(float(mean_iou(total, area)), parts, lone if lone.size > 1 else ~has_area & False, sizes)


def parts_of_areas(inside: F64, every: F64, total: F64, area: F64) -> F64:
    """Return the jackknife parts (n, K) of a mean IoU of intersections and unions (n, K), whose sums are ``total`` and
    ``area`` (K,); without its only unit a class keeps its IoU."""
    without, has_area = area - every, area > 0
    iou = np.divide(total, area, out=np.zeros_like(total), where=has_area)
    change = np.divide(total - inside, without, out=np.broadcast_to(iou, inside.shape).copy(), where=without > 0) - iou
    parts: F64 = (1 - len(inside)) * change / max(1, has_area.sum())
    return parts


def variance(parts: F64, lone: NDArray[np.bool_], sizes: F64) -> float:
    """Return the variance (of the mean over units) of jackknife parts (n, K); nan for fewer than 2 units.

    A class with all its area in one unit is given the mean variance that one unit has in the other classes.
    """
    n = len(parts)
    if n < 2:
        return math.nan
    centred = parts - parts.mean(0)
    total = float(np.square(centred.sum(1)).sum()) / (n * (n - 1))
    if lone.any():
        known = ~lone & (sizes > 0)
        count = int(known.sum() + lone.sum())
        of_a_unit = np.square(centred[:, known]).sum(0) / (n * (n - 1)) * sizes[known]
        # No share (0..1) of one unit has a variance above 1/4.
        total += lone.sum() * min(0.25 / count**2, float(of_a_unit.mean()) if known.any() else math.inf)
    return total


@dataclass(frozen=True)
class Interval:
    """The 95 % interval of a score, from ``low`` to ``high``; both are nan where there is none: ``why`` says why."""

    low: float
    high: float
    why: str = ""

    @property
    def ends(self) -> tuple[float, float]:
        """``low`` and ``high``."""
        return self.low, self.high


def clopper_pearson(hits: float, n: float) -> tuple[float, float]:
    """Return the exact interval (0..1) of a share of ``hits`` in ``n`` (Clopper, Pearson 1934); nan if n is 0.

    It holds the share in at least 95 % of samples, whatever the share and n are; with 6 units, and with extreme shares,
    Wilson's holds it in 83 to 90 % only. 0 of 60 is [0, 0.06]. ``hits`` and ``n`` need not be whole numbers.
    """
    if not 0 <= hits <= n:
        raise ValueError(f"{hits} hits of {n}")
    if n == 0:
        return math.nan, math.nan
    low = float(betaincinv(hits, n - hits + 1, ENDS[0])) if hits > 0 else 0.0
    high = float(betaincinv(hits + 1, n - hits, ENDS[1])) if hits < n else 1.0
    return low, high


def interval(records: Records, labelled: ArrayLike | None = None, *, errors: bool = False) -> tuple[float, float]:
    """Return the ends of :func:`explained_interval`."""
    return explained_interval(records, labelled, errors=errors).ends


def explained_interval(records: Records, labelled: ArrayLike | None = None, *, errors: bool = False) -> Interval:
    """Return the interval of records' score over all units like these, which holds the score itself.

    - Hits have Clopper's and Pearson's.
    - Scores of units, and areas whose classes all weigh the units alike (J&F, recall), are shares, 0..1: Student's of
      the units and one more at either end, as Bonett and Price (2012) have it of hits. A few units that fail may all
      be missing from a sample; Student's of the sample alone then holds the score in half of the cases.
    - With ``errors``, scores of units are positive numbers without an upper end: Student's on the log scale, upward
      of the units and one more, 2.5 times as far from the mean as the largest.
    - Areas (n, K, 2) have the mIoU's, :func:`_of_miou`, or none where units are too few for the classes. It is **of the
      classes that these units have**.

    Raises ValueError for a share outside 0..1 or an error below 0. Coverage: :mod:`benchmarks.decisions`.
    """
    if not len(records):
        return Interval(math.nan, math.nan, "nothing was scored")
    if isinstance(records, MatchedDetections):
        return interval_of_average_precision(records)
    if are_hits(records):
        return Interval(*clopper_pearson(int(records.sum()), len(records)))
    if records.ndim == 1:
        values = records[np.isfinite(records)].astype(np.float64)
        if errors:
            return _of_errors(values)
        if values.size and not (values.min() >= -_ROUNDING and values.max() <= 1 + _ROUNDING):
            raise ValueError(f"shares from {values.min()} to {values.max()}")
        records = np.stack([values, np.ones_like(values)], -1)[:, None]
    without = jackknife(records)
    if math.isnan(without.value):
        return Interval(math.nan, math.nan, "nothing was scored")
    if len(records) < 2:
        return Interval(math.nan, math.nan, "one image")
    if weigh_alike(without.lone, without.sizes):
        return _of_shares(records)
    return _of_miou(records, without, labelled)


def weigh_alike(lone: NDArray[np.bool_], sizes: F64) -> bool:
    """Whether all classes that there are (K,) weigh the units alike: they are one mean over units, or several."""
    there = sizes[sizes > 0]
    return bool(there.size == 1 or (there.size and not lone.any() and np.ptp(there) <= _ROUNDING * there[0]))


def degrees_of_freedom(lone: NDArray[np.bool_], sizes: F64, n: int) -> float:
    """Return Student's degrees of freedom of a score over n units: n - 1.

    Where all classes weigh the units alike, of as many equal units as there are in effect (Kish 1965), at least 1: of
    12 videos two may have most of the objects, and differences of J&F then had p < 0.05 in up to twice as many cases.
    """
    return max(1.0, float(sizes.max()) - 1) if weigh_alike(lone, sizes) else n - 1.0


def _of_shares(records: Arrays) -> Interval:
    """Student's of units (n, K, 2) that all classes weigh alike, and of one more at either end, of the mean weight.

    It holds the score v: the two units move the middle by |2 v - 1| / (n + 2) and widen the interval by more.
    """
    mean = records[..., 1].astype(np.float64).mean(0)
    ends = np.stack([np.stack([end * mean, mean], -1) for end in (0, 1)])
    added = jackknife(np.concatenate([records.astype(np.float64), ends]))
    error = math.sqrt(variance(added.parts, added.lone, added.sizes))
    half = error * float(stdtrit(degrees_of_freedom(added.lone, added.sizes, len(records) + 2), ENDS[1]))
    return Interval(max(0.0, added.value - half), min(1.0, added.value + half))


def _of_errors(values: F64) -> Interval:
    """Student's of positive scores (n,) on the log scale, upward with one more unit."""
    if values.size < 2:
        return Interval(math.nan, math.nan, "one image" if values.size else "nothing was scored")
    if values.min() < 0:
        raise ValueError(f"an error of {values.min()}")
    mean = float(values.mean())
    if np.ptp(values) <= _ROUNDING * mean:
        return Interval(math.nan, math.nan, "all images score the same")
    low = mean * math.exp(-_relative(values))
    more = np.append(values, mean + _BEYOND * (values.max() - mean))
    return Interval(low, float(more.mean()) * math.exp(_relative(more)))


def _relative(values: F64) -> float:
    """Half the width of Student's interval, over the mean."""
    half = float(stdtrit(len(values) - 1, ENDS[1])) * float(values.std(ddof=1)) / math.sqrt(len(values))
    return half / float(values.mean())


def _of_miou(records: Arrays, without: Jackknife, labelled: ArrayLike | None) -> Interval:
    """The interval of a mIoU of areas (n, K, 2), n > 1: Student's on the logit scale.

    Few units understate a mIoU: a class that is rare is predicted in more units than it is found in, so a class that
    is predicted and nowhere ``labelled`` (K,; areas or counts, all if None) counts 0 here and more elsewhere. The bias
    lies between the jackknife's and, where it is lower, that of the unlabelled classes having the mean IoU of the
    others (0 without any): around the score without its bias, with half the bias in its error, the interval reaches
    from the lower end by either to the upper one.

    There is none where more than :data:`MOST_LONE` of the classes lie in a single unit, of whose spread nothing is
    known, or where the bias may be larger than half of Student's interval: it would then say which classes the units
    lack, and not how they vary.
    """
    n, (inside, every) = len(records), (part.sum(0) for part in as_areas(records))
    there = every > 0
    classes, lone = int(there.sum()), int(without.lone.sum())
    if lone > MOST_LONE * classes:
        return Interval(math.nan, math.nan, f"too few images: {lone} of {classes} classes are in a single one")
    error = math.sqrt(variance(without.parts, without.lone, without.sizes))
    if error == 0:  # all units are alike: nothing is known of their spread, but that a share has no more than hits
        return Interval(*clopper_pearson(min(without.value, 1.0) * n, n))
    absent = there & (np.asarray(labelled) <= 0) if labelled is not None else np.zeros(there.shape, dtype=bool)
    others = float(mean_iou(inside[~absent], every[~absent])) if (every[~absent] > 0).any() else 0.0
    unlabelled = -others * float(absent.sum() / classes)
    width = float(stdtrit(n - 1, ENDS[1]))
    biases = without.bias, min(without.bias, unlabelled)
    if max(map(abs, biases)) > width * error:
        missing = f"{int(absent.sum())} of {classes} classes are predicted and nowhere labelled"
        return Interval(math.nan, math.nan, f"too few images: {missing if absent.any() else 'the score is biased'}")
    return _on_logit_scale(without.value, without.value, error, biases, width)


def _on_logit_scale(held: float, value: float, error: float, biases: Sequence[float], width: float) -> Interval:
    """The interval that holds ``held`` and, on the logit scale, Student's around ``value`` less each of the ``biases``.

    Half of a bias is added to the ``error``; ``width`` is Student's quantile.
    """
    low = high = held
    for bias in biases:
        centre = min(max(value - bias, _EDGE), 1 - _EDGE)
        half = width * math.hypot(error, bias / 2) / (centre * (1 - centre))
        low, high = min(low, expit(logit(centre) - half)), max(high, expit(logit(centre) + half))
    return Interval(float(low), float(high))


@dataclass(frozen=True)
class SeedSummary:
    """Scores over seeds of training, in their unit: mean, deviation, number, and 95 % interval of the mean.

    ``deviation`` has n - 1 in its denominator. It and the interval, ``low`` to ``high``, are nan for one seed.
    """

    mean: float
    deviation: float
    n: int
    low: float
    high: float


def over_seeds(values: Sequence[float]) -> SeedSummary:
    """Return mean, deviation, number and Student's interval, mean -+ t(n - 1) deviation / sqrt n, of one score a seed.

    Of equal values the interval is the value itself. Raises ValueError for no values or one that is not finite.
    """
    every = np.asarray(values, dtype=np.float64)
    if every.ndim != 1 or not every.size or not np.isfinite(every).all():
        raise ValueError(f"scores of seeds that have no mean: {every.tolist()}")
    n = len(every)
    if n == 1:
        return SeedSummary(float(every[0]), math.nan, 1, math.nan, math.nan)
    if every.min() == every.max():  # rounding in the mean would give them a spread
        return SeedSummary(float(every[0]), 0.0, n, float(every[0]), float(every[0]))
    mean, deviation = float(every.mean()), float(every.std(ddof=1))
    half = float(stdtrit(n - 1, ENDS[1])) * deviation / math.sqrt(n)
    return SeedSummary(mean, deviation, n, mean - half, mean + half)


def interval_of_average_precision(records: MatchedDetections) -> Interval:
    """Return the interval of records' AP, over all images like these, of the classes that these have, or why none.

    Student's on the logit scale, by the jackknife. A class is in few images' AP only where it has an object there, and
    it is detected in others too, so few images overstate AP: by about twice as much as it is higher in halves of them
    (benchmarks/ap_intervals; once is too little, as rare classes leave many halves). The interval reaches from that of
    AP without this bias, with half of it in the error, to that with it, and holds AP. Where scores are equal, AP by the
    order of images is above that of one rank for all of them, and the interval is around the latter. None where more
    than :data:`MOST_ALONE` of the classes have all objects in one image: nothing is known of their spread.
    """
    n, value = len(records), mean_average_precision(records)
    without = without_each(records, tied=True)
    if math.isnan(value):
        return Interval(math.nan, math.nan, "nothing was scored")
    if n < 2:
        return Interval(math.nan, math.nan, "one image")
    lone, classes = int(without.lone.sum()), int((without.sizes > 0).sum())
    if lone > MOST_ALONE * classes:
        why = f"too few images: {lone} of {classes} classes have all objects in a single one"
        return Interval(math.nan, math.nan, why)
    error = math.sqrt(variance(without.parts, without.lone, without.sizes))
    if error == 0:  # as of areas
        return Interval(*clopper_pearson(min(value, 1.0) * n, n))
    rng, width = numpy_rng(0, "halves", n), float(stdtrit(n - 1, ENDS[1]))
    halves = [rng.permutation(n) < n // 2 for _ in range(max(2, min(_HALVES, 20_000 // n)))]
    bias = 2 * bias_of_halves(records, halves, tied=True)
    return _on_logit_scale(value, without.value, error, (0.0, bias), width)


@dataclass(frozen=True)
class McNemar:
    """Images in which only the first, and only the second, is right, and the exact two-sided p of equal shares."""

    only_a: int
    only_b: int
    p: float


def mcnemar(a: ArrayLike, b: ArrayLike) -> McNemar:
    """Compare hits (n,) of the same images (McNemar 1947), exactly. Raises ValueError if lengths differ."""
    first, second = (np.asarray(hits, dtype=bool) for hits in (a, b))
    if first.shape != second.shape or first.ndim != 1:
        raise ValueError(f"hits of shapes {first.shape} and {second.shape} cannot be paired")
    only_a, only_b = int((first & ~second).sum()), int((second & ~first).sum())
    p = min(1.0, 2 * float(bdtr(min(only_a, only_b), only_a + only_b, 0.5))) if only_a + only_b else 1.0
    return McNemar(only_a, only_b, p)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the p-values adjusted for their number (Holm 1979), in the order given; nan, not tested, does not count.

    Those up to a level are the comparisons that hold together at that level.
    """
    every = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(every, kind="stable")[: np.isfinite(every).sum()]
    adjusted = np.full(len(every), np.nan)
    adjusted[order] = np.minimum(np.maximum.accumulate(every[order] * np.arange(len(order), 0, -1)), 1.0)
    return adjusted.tolist()
