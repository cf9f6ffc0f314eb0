"""Scores with their errors, and differences between them: over units, over seeds of training, or over both.

What is random. **Units** (images, videos, pairs) are a sample of those that could have been taken; all scores are of
the same ones, so differences are paired by them. **Seeds** of training are a sample for each network by itself. The
data set, its classes, the training images and the protocol are fixed. A difference of means over seeds has the variance

    s_a^2 / n_a + s_b^2 / n_b + v - r_a - r_b

with the variances over seeds s^2, the variance v over units of the difference of the scores averaged over seeds
(jackknife), and r, what seeds and units vary together, which both hold; at least each of the two alone. Student's t has
the degrees of freedom of the seeds, a third of the way from those of the smaller side, n - 1, to Welch's (1947), but no
more than those of the units. Welch's own are too many where p is compared with .05 / 24: of 24 equal pairs whose
spreads differ ten- or fiftyfold, with 2 or 3 seeds, 14 to 16 % of pages have a verdict, with these at most 5.6 %.
Satterthwaite's over all three terms (1946) are worse (up to 96 %): two seeds may agree by chance. Without the bound by
the units, 10 seeds of networks that differ in 6 units gave 23 %.

Where both sides have one seed, units alone are random in the difference and its interval: they are of these two
trainings. A verdict of them is *higher, one training each* (:data:`ONE_EACH`), never *better*: two seeds of the same
network often differ by more than units explain. Its p takes each training to have moved its score by a deviation as
large as the standard error of the two scores' difference if they were of different units (:func:`_with_luck`). Where
one side has several seeds and the other one, nothing is decided.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence, Sized
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, betaincinv, nctdtr, stdtr, stdtrit

from dinoskip.results.average_precision import MatchedDetections
from dinoskip.results.statistics import (
    ENDS,
    F64,
    Records,
    are_hits,
    clopper_pearson,
    degrees_of_freedom,
    holm,
    jackknife,
    variance,
)

SIGNIFICANT = 0.05  # the usual level, and that of the 95 % intervals beside it
LEAST = 6
"""With fewer units no difference is decided: of 5 equal signs p is 0.06."""
MOST_LONE_APART = 0.5
"""Share of the classes that may lie in a single unit each where a difference of mIoU shows its interval. Of 6 images
and 60 or 150 classes 70 % do, and it holds the difference in 87 to 89 % of samples."""
OVER_SEEDS = "over seeds"
ONE_EACH = "one training each"
_EXACT = 12  # units up to which all signs are gone through


@dataclass(frozen=True, eq=False)
class Estimate:
    """A score, and what each of n units contributes to its error (:class:`dinoskip.results.statistics.Jackknife`).

    ``hits``: of differences of hits, whose spread is known to be at least that of one hit. ``error`` is the standard
    error over units where ``parts`` are not known (n = 0), nan where neither is; ``units`` then says how many there
    are, 0 if that is not known. ``fits`` is the variance that the seeds of an evaluation's own fits add.
    """

    value: float
    parts: F64
    lone: NDArray[np.bool_]
    sizes: F64
    hits: bool = False
    error: float = math.nan
    fits: float = 0.0
    units: int = 0

    def __sub__(self, other: Estimate) -> Estimate:
        """The difference of two scores of one network, of different units where either knows no parts."""
        if self.parts.shape != other.parts.shape or not len(self.parts):
            error = math.hypot(self.standard_error, other.standard_error)
            return known(self.value - other.value, error, _fewest([self, other]))
        return Estimate(
            self.value - other.value, self.parts - other.parts, self.lone | other.lone,
            np.where(self.sizes * other.sizes > 0, (self.sizes + other.sizes) / 2, self.sizes + other.sizes),
            self.hits and other.hits, math.hypot(self.error, other.error), self.fits + other.fits,
            _fewest([self, other]),
        )  # fmt: skip

    @property
    def standard_error(self) -> float:
        """Standard error over the units (images, or what is resampled)."""
        if not len(self.parts):
            return self.error
        return math.sqrt(variance(self.parts, self.lone, self.sizes) + self.fits)

    @property
    def degrees(self) -> float:
        """Student's degrees of freedom over the units; infinite where it is not known how many there are."""
        if len(self.parts):
            return degrees_of_freedom(self.lone, self.sizes, len(self.parts))
        return self.units - 1.0 if self.units > 1 else math.inf

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval: of hits the exact one, for as many units as have its variance; else Student's; nan of one."""
        if len(self.parts) < 2:
            return math.nan, math.nan
        squared = self.standard_error**2
        if self.hits:
            share = min(max(self.value, 0.0), 1.0)
            n = min(float(len(self.parts)), share * (1 - share) / squared) if squared > 0 else float(len(self.parts))
            n = n if n > 0 else float(len(self.parts))
            return clopper_pearson(share * n, n)
        half = math.sqrt(squared) * float(stdtrit(self.degrees, ENDS[1]))
        return self.value - half, self.value + half


_NO_UNITS = (
    np.zeros((0, 1)),
    np.zeros(1, bool),
    np.zeros(1),
)  # parts, lone, sizes; nothing writes to them


def known(value: float, error: float = math.nan, units: int = 0) -> Estimate:
    """Return the estimate of a score over ``units`` (0: not known how many) of which no unit's part is known."""
    return Estimate(value, *_NO_UNITS, error=error, units=units)


def _fewest(scores: Sequence[Estimate]) -> int:
    """The fewest units that any of several scores is over; 0 if that is known of none."""
    return min((score.units or len(score.parts) for score in scores if score.units or len(score.parts)), default=0)


def estimate(records: Records | Sequence[Records]) -> Estimate:
    """Return the score of records, or the mean of those of several fits; ValueError if not of the same units."""
    listed = [records] if isinstance(records, np.ndarray | MatchedDetections) else list(records)
    if not listed or len({fit.shape for fit in listed}) != 1:
        raise ValueError(f"records of different shapes cannot be paired: {sorted({fit.shape for fit in listed})}")
    each = [jackknife(fit) for fit in listed]
    values = [fit.value for fit in each]
    return Estimate(
        float(np.mean(values)),
        np.mean([fit.parts for fit in each], axis=0),
        np.any([fit.lone for fit in each], axis=0),
        np.mean([fit.sizes for fit in each], axis=0),
        are_hits(listed[0]),
        fits=float(np.var(values, ddof=1)) / len(values) if len(values) > 1 else 0.0,
    )


@dataclass(frozen=True)
class Difference:
    """A score minus another, its interval of 95 % and two-sided p-value; nan where there is none.

    Over ``n`` units (0: they are taken as fixed); ``seeds`` says whether those of training are random, too, ``why``
    for want of what there is no p. ``kind`` is :data:`OVER_SEEDS`, :data:`ONE_EACH` (the two are trainings of two
    networks), or nothing where it is the gain of one training or undecided. Of one training each ``with_luck`` is the
    p that a verdict needs, and is nan else. ``unsure`` says why the interval is not to be shown, if so: it may hold the
    difference in fewer than 93 % of samples.
    """

    value: float
    low: float
    high: float
    p: float
    n: int
    seeds: bool = False
    why: str = ""
    kind: str = ""
    with_luck: float = math.nan
    unsure: str = ""

    @property
    def of_networks(self) -> float:
        """p that a verdict on the two networks needs: with the luck of training, assumed of one training each."""
        return self.p if math.isnan(self.with_luck) else self.with_luck

    @property
    def within_luck(self) -> bool:
        """Whether units alone tell two trainings apart, and the luck of training that is assumed may explain it."""
        return bool(self.p < SIGNIFICANT <= self.with_luck)

    @property
    def paired(self) -> bool:
        """Whether both scores are of the same units, one by one."""
        return self.n > 0

    @property
    def in_points(self) -> Difference:
        """The difference in percentage points, of one between shares (0..1)."""
        return replace(self, value=100 * self.value, low=100 * self.low, high=100 * self.high)

    @property
    def turned(self) -> Difference:
        """The second score minus the first."""
        return replace(self, value=-self.value, low=-self.high, high=-self.low)


def difference(first: Sequence[Estimate], second: Sequence[Estimate] = ()) -> Difference:
    """Return the mean of ``first`` minus that of ``second`` (nothing: 0), one estimate a seed of training, see above.

    Undecided (p is nan) below :data:`LEAST` units, where one side alone has several seeds, and where nothing is known
    of the error. Scores without parts are taken as of different units, by their errors; where they have none, and both
    sides several seeds, units are taken as fixed. ``p`` and the interval of one seed each are of these two trainings.
    """
    sides = [side for side in (list(first), list(second)) if side]
    value = _mean_value(first) - (_mean_value(second) if second else 0)
    every = [score for side in sides for score in side]
    n = len(first[0].parts)
    paired = n > 0 and len({score.parts.shape for score in every}) == 1
    several = [len(side) > 1 for side in sides]
    if any(several) and not all(several):
        return Difference(value, math.nan, math.nan, math.nan, n if paired else 0, why="one seed on one side")
    if not paired:
        result = _of_known_errors(value, sides, seeds=all(several))
    elif all(several):
        result = _over_seeds(value, sides, _mean(first) - _mean(second) if second else _mean(first))
    else:
        result = _over_units(value, _mean(first) - _mean(second) if second else _mean(first))
    result = replace(result, unsure=_unsure(every)) if paired else result
    if 0 < (few := _fewest(every)) < LEAST:
        return replace(
            result, p=math.nan, why=f"{few} {'image is' if few == 1 else 'images are'} too few (below {LEAST})"
        )
    if math.isnan(result.p):
        return replace(result, why="nothing is known of the error")
    if any(several):
        return replace(result, kind=OVER_SEEDS)
    return replace(result, kind=ONE_EACH, with_luck=_with_luck(result, first[0], second[0])) if second else result


def _unsure(scores: Sequence[Estimate]) -> str:
    """Return why the interval of a paired difference must not be shown; empty if it may be."""
    lone = int(np.any([score.lone for score in scores], axis=0).sum())
    classes = int(np.any([score.sizes > 0 for score in scores], axis=0).sum())
    return f"{lone} of {classes} classes are in a single image" if lone > MOST_LONE_APART * classes else ""


def _with_luck(apart: Difference, first: Estimate, second: Estimate) -> float:
    """p of two networks, of one training each, being equal if each training's luck is as large as the units'.

    How much another training would change a score is not known from one. It is taken to have, on either side, the
    variance v of the difference of the two scores as if of different units, so that the difference has 2 v beside its
    own over units. That is the largest of what "one standard error" can mean here: of a score, of the paired
    difference, or of the unpaired one. Trainings that vary more are called higher too often, and only more seeds tell.
    nan of published numbers, over no known number of units: the error that is assumed of them is of everything.
    """
    if not _fewest([first, second]):
        return math.nan
    unpaired = first.standard_error**2 + second.standard_error**2
    squared = (first - second).standard_error ** 2 + 2 * unpaired
    luck = _t(apart.value, squared, min(first.degrees, second.degrees), apart.n, seeds=False).p
    return float(np.fmax(apart.p, luck))


def _mean_value(side: Sequence[Estimate]) -> float:
    # NumPy's mean of one number is that number, and takes ten times as long as all else of a pair of a leaderboard.
    return float(side[0].value) if len(side) == 1 else float(np.mean([score.value for score in side]))


def _mean(side: Sequence[Estimate]) -> Estimate:
    """The estimates of seeds as one, which is as exact as the units allow."""
    return Estimate(
        float(np.mean([score.value for score in side])), np.mean([score.parts for score in side], axis=0),
        np.any([score.lone for score in side], axis=0), np.mean([score.sizes for score in side], axis=0),
        all(score.hits for score in side), float(np.mean([score.error for score in side])),
        float(np.mean([score.fits for score in side])),
    )  # fmt: skip


def _t(value: float, squared: float, degrees: float, n: int, *, seeds: bool, centre: float | None = None) -> Difference:
    """Student's interval, around the value or another ``centre``, and p."""
    if not squared > 0:
        return Difference(value, math.nan, math.nan, 1.0 if value == 0 else math.nan, n, seeds)
    error, middle = math.sqrt(squared), value if centre is None else centre
    half = error * float(stdtrit(degrees, ENDS[1]))
    p = 2 * float(stdtr(degrees, -abs(middle) / error))
    return Difference(value, middle - half, middle + half, p, n, seeds)


def _over_units(value: float, both: Estimate) -> Difference:
    """Difference of one seed each; p is exact for few units of equal weight (all signs, Fisher 1935) and for hits
    (McNemar 1947), else Student's of the jackknife."""
    n, sums = len(both.parts), both.parts.sum(1)
    if n < 2:
        return Difference(value, math.nan, math.nan, math.nan, n)
    if both.hits:  # one more hit of either side alone, so that none at all has a width (Bonett and Price 2012)
        each = np.concatenate([value + sums - sums.mean(), [1.0, -1.0]])
        squared = float(np.var(each, ddof=1)) / len(each)
        result = _t(value, squared + both.fits, len(each) - 1, n, seeds=False, centre=float(each.mean()))
    else:
        result = _t(value, variance(both.parts, both.lone, both.sizes) + both.fits, both.degrees, n, seeds=False)
    if not np.allclose(both.sizes, n):  # areas: a class in one unit has no part there, and its sign is every unit's
        return result
    of_units = value + sums - sums.mean()
    whole = np.rint(of_units)
    if both.hits and np.allclose(of_units, whole, atol=1e-9):  # whole numbers but for rounding
        return replace(result, p=_p_of_signs(int((whole > 0).sum()), int((whole < 0).sum())))
    if LEAST <= n <= _EXACT:
        signs = np.array(list(itertools.product((1.0, -1.0), repeat=n)))
        sizes = np.abs(signs @ of_units)
        # The sample's own signs are among these: their sum, in another order, may be smaller by rounding, and counts.
        return replace(result, p=float((sizes >= abs(of_units.sum()) * (1 - 1e-12)).mean()))
    if math.isnan(result.p):
        return replace(result, p=_p_of_signs(n, 0))  # all units differ by the same
    return result


def _p_of_signs(more: int, less: int) -> float:
    return min(1.0, 2 * float(bdtr(min(more, less), more + less, 0.5))) if more + less else 1.0


def _over_seeds(value: float, sides: Sequence[Sequence[Estimate]], both: Estimate) -> Difference:
    n = len(both.parts)
    of_seeds = [float(np.var([score.value for score in side], ddof=1)) / len(side) for side in sides]
    of_units = variance(both.parts, both.lone, both.sizes)
    together = sum(_together(side) for side in sides)
    squared = max(sum(of_seeds), of_units, sum(of_seeds) + of_units - together) if n > 1 else sum(of_seeds)
    degrees = _degrees(of_seeds, sides)
    return _t(value, squared, min(degrees, both.degrees) if n > 1 else degrees, n, seeds=True)


def _degrees(of_seeds: Sequence[float], sides: Sequence[Sized]) -> float:
    """A third of the way from the smaller side's degrees of freedom to Welch's."""
    each = [len(side) - 1.0 for side in sides]
    below = sum(squared * squared / degrees for squared, degrees in zip(of_seeds, each, strict=True))
    welch = sum(of_seeds) ** 2 / below if below > 0 else min(each)
    return min(each) + (welch - min(each)) / 3


def _together(side: Sequence[Estimate]) -> float:
    """Return the variance of a side's mean that is due to the interaction of its seeds and units."""
    every = np.stack([score.parts.sum(1) for score in side])
    every = every - every.mean(1, keepdims=True)
    seeds, n = every.shape
    residual = every - every.mean(0)
    return float(np.square(residual).sum() / max(1, (seeds - 1) * (n - 1)) / (n * seeds))


def _of_known_errors(value: float, sides: Sequence[Sequence[Estimate]], *, seeds: bool) -> Difference:
    if not seeds:
        degrees = min(side[0].degrees for side in sides)
        return _t(value, sum(side[0].standard_error ** 2 for side in sides), degrees, 0, seeds=False)
    of_seeds = [float(np.var([score.value for score in side], ddof=1)) / len(side) for side in sides]
    return _t(value, sum(of_seeds), _degrees(of_seeds, sides), 0, seeds=True)


@dataclass(frozen=True)
class Judgement:
    """Two networks: their difference, and how much the higher one is above its own start (None: not known)."""

    difference: Difference
    gain: Difference | None = None

    @property
    def p(self) -> float:
        """p of the higher one not being better: the larger of the p of no difference and the one-sided p of no gain.

        Both must hold (Berger 1982). nan where either is undecided for want of units or seeds.
        """
        if self.gain is None:
            return self.difference.of_networks
        return float(np.maximum(self.difference.of_networks, one_sided(self.gain)))


def judged(
    first: Sequence[Estimate],
    second: Sequence[Estimate],
    first_starts: Sequence[Estimate] = (),
    second_starts: Sequence[Estimate] = (),
) -> Judgement:
    """Compare two networks by their scores, one a seed, and by those of the same seeds before training, if known."""
    between = difference(first, second)
    return Judgement(between, gain_of(*((first, first_starts) if between.value > 0 else (second, second_starts))))


def gain_of(after: Sequence[Estimate], before: Sequence[Estimate]) -> Difference | None:
    """Return how much a network gained, paired by seed; None if there are not as many starts."""
    if len(after) != len(before):
        return None
    return difference([now - start for now, start in zip(after, before, strict=True)])


def one_sided(gain: Difference) -> float:
    """Return p of a difference not being above 0; nan where it has none."""
    return gain.p / 2 if gain.value > 0 else 1 - gain.p / 2


def decided(judgements: Sequence[Judgement]) -> list[tuple[int, float]]:
    """Return of every comparison of a page its sign, 0 where it is undecided, and its p, corrected for all (Holm)."""
    adjusted = holm([judgement.p for judgement in judgements])
    return [
        (int(np.sign(judgement.difference.value)) if p < SIGNIFICANT else 0, p)
        for judgement, p in zip(judgements, adjusted, strict=True)
    ]


def least_gap(seeds: int, comparisons: int, power: float = 0.8) -> float:  # the usual power (Cohen 1988)
    """Return the smallest gap between two networks, in standard deviations over seeds, that is likely to be decided.

    Both have ``seeds`` seeds of equal deviation, and units add nothing to the error. It is found with probability
    ``power`` where it is the first of ``comparisons`` that Holm's correction looks at, p below :data:`SIGNIFICANT` over
    their number. Infinite of one seed: nothing is known of the deviation. Raises ValueError unless there is a seed and
    a comparison, and 0.05 < power < 1.

    The difference over its standard error has the noncentral t distribution with 2 (seeds - 1) degrees of freedom,
    whatever the shares of the two sides in its variance are; what it must reach has those of :func:`difference`, which
    depend on the shares alone. Their distribution is beta's, taken at 200 equally likely points.
    """
    if seeds < 1 or comparisons < 1 or not SIGNIFICANT < power < 1:
        raise ValueError(f"{seeds} seeds, {comparisons} comparisons, power {power}")
    if seeds == 1:
        return math.inf
    shares = betaincinv((seeds - 1) / 2, (seeds - 1) / 2, (np.arange(200) + 0.5) / 200)
    degrees = [_degrees([share, 1 - share], [range(seeds)] * 2) for share in shares]
    needed = stdtrit(degrees, 1 - SIGNIFICANT / (2 * comparisons))

    def missed(gap: float) -> float:
        return float(nctdtr(2 * (seeds - 1), gap * math.sqrt(seeds / 2), needed).mean())

    low, high = 0.0, 1.0
    while missed(high) > 1 - power:
        low, high = high, 2 * high
    while high - low > 1e-6 * high:  # more digits than anyone prints
        middle = (low + high) / 2
        low, high = (middle, high) if missed(middle) > 1 - power else (low, middle)
    return high


@dataclass(frozen=True)
class UnpairedPairs:
    """:func:`difference` of many pairs of scores, of one training each and of different units, an entry a pair.

    ``values`` are the differences, ``p`` what a verdict needs (:attr:`Difference.of_networks`), nan where it is
    undecided; ``known`` is False where nothing is known of the error.
    """

    values: F64
    p: F64
    known: NDArray[np.bool_]


def unpaired_pairs(scores: Sequence[Estimate], first: NDArray[np.int64], second: NDArray[np.int64]) -> UnpairedPairs:
    """Return the differences of scores without parts, ``scores[first]`` minus ``scores[second]``.

    The numbers are those of :func:`difference` to the bit: whatever NumPy may round otherwise is done by Python.
    """
    value, degrees = (np.array([getattr(score, name) for score in scores]) for name in ("value", "degrees"))
    errors = [score.standard_error for score in scores]
    squares = np.array([error**2 for error in errors])
    apart, least = value[first] - value[second], np.minimum(degrees[first], degrees[second])
    squared = squares[first] + squares[second]
    known_error = squared > 0
    p = _p_of_t(apart, squared, least)
    together = np.array([math.hypot(errors[a], errors[b]) ** 2 for a, b in zip(first, second, strict=True)])
    luck = np.fmax(p, _p_of_t(apart, together + 2 * squared, least))
    units = np.array([score.units or math.inf for score in scores])
    few = np.minimum(units[first], units[second])
    needed = np.where(np.isfinite(few) & ~np.isnan(luck), luck, p)
    return UnpairedPairs(apart, np.where(few < LEAST, math.nan, needed), known_error)


def _p_of_t(values: F64, squared: F64, degrees: F64) -> F64:
    """Student's p of many differences, as :func:`_t` gives it."""
    with np.errstate(divide="ignore", invalid="ignore"):
        p = 2 * stdtr(degrees, -np.abs(values) / np.sqrt(squared))
    return np.where(squared > 0, p, np.where(values == 0, 1.0, math.nan))
