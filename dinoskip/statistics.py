"""Statistics of scores over images: intervals, paired differences, and choices scored on other images.

Records are what images contribute to a score (:mod:`dinoskip.records`): hits (n,) or scores of their own (n,), whose
score is their mean, without images that have none (nan), or areas (n, K, 2), whose score is the mIoU of their sums.
Scores are in 0..1, or in hundredths of the row's unit. Intervals are of 95 %, the bootstrap (Efron 1979)
is over images with the percentile method. All is deterministic by a seed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import bdtr

from dinoskip.randomness import numpy_rng

F64 = NDArray[np.float64]
Records = NDArray[np.integer] | NDArray[np.bool_] | NDArray[np.floating]
RESAMPLES = 1000
ENDS = (0.025, 0.975)
_Z = 1.959963984540054  # the normal distribution's 97.5 % point
_DRAWS = 2**22  # numbers drawn at once: 32 MiB


def wilson(hits: int, n: int) -> tuple[float, float]:
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
    """Return the score (0..1) of records: the mean of hits, or the mIoU of areas; nan for none."""
    return float(_scores(np.ones((1, len(records))), records)[0])


def mean_iou(intersection: F64, union: F64) -> F64:
    """Return the mean IoU (...,) of areas (..., K) over the classes that have a union; nan where none has."""
    there = union > 0
    iou = np.divide(intersection, union, out=np.zeros_like(intersection), where=there)
    count = there.sum(-1)
    mean: F64 = np.divide(iou.sum(-1), count, out=np.full(count.shape, np.nan), where=count > 0)
    return mean


def resample_counts(images: int, resamples: int, seed: int) -> Iterator[F64]:
    """Yield how often each image is drawn, (m, images) of whole numbers, rows in all ``resamples``; bounded memory.

    Images are drawn with replacement, as many as there are. A function of the number of images and the seed alone, so
    that scores of the same images share their resamples.
    """
    rng = numpy_rng(seed, "bootstrap", images)
    step = max(1, _DRAWS // images)
    for at in range(0, resamples, step):
        rows = min(step, resamples - at)
        chosen = rng.integers(0, images, (rows, images)) + images * np.arange(rows)[:, None]
        yield np.bincount(chosen.ravel(), minlength=rows * images).reshape(rows, images).astype(np.float64)


def percentile_interval(scores: F64) -> tuple[float, float]:
    """Return the ends of the interval that resampled scores (m,) span, those that are nan left out; nan for none."""
    finite = scores[np.isfinite(scores)]
    if not finite.size:
        return math.nan, math.nan
    low, high = np.quantile(finite, ENDS)
    return float(low), float(high)


def _scores(times: F64, records: Records) -> F64:
    """Return the scores (m,) of records when images count ``times`` (m, n)."""
    if not records.shape[0]:
        return np.full(len(times), np.nan)
    if records.ndim == 1:
        values = records.astype(np.float64)
        there = np.isfinite(values)
        counted = times @ there.astype(np.float64)
        total = times @ np.where(there, values, 0.0)
        share: F64 = np.divide(total, counted, out=np.full(len(times), np.nan), where=counted > 0)
        return share
    summed = (times @ records.reshape(len(records), -1).astype(np.float64)).reshape(len(times), *records.shape[1:])
    return mean_iou(summed[..., 0], summed[..., 1])


@dataclass(frozen=True)
class Difference:
    """A score minus another over the same ``n`` images, with the ends of its interval and a two-sided p-value."""

    value: float
    low: float
    high: float
    p: float
    n: int


Side = Records | Sequence[Records]


def mean_interval(scores: ArrayLike, *, resamples: int = RESAMPLES, seed: int = 0) -> tuple[float, float]:
    """Return the interval of the mean of images' own scores (n,), nan left out, or of areas (n, K, 2); nan for none."""
    values = np.asarray(scores, dtype=np.float64)
    if not len(values):
        return math.nan, math.nan
    parts = [_scores(times, values) for times in resample_counts(len(values), resamples, seed)]
    return percentile_interval(np.concatenate(parts))


def paired_difference(a: Side, b: Side, *, resamples: int = RESAMPLES, seed: int = 0) -> Difference:
    """Return the score of ``a`` minus that of ``b``, records of the same images in the same order.

    Each may be a list, of several seeds of training; its score is then their mean. The bootstrap draws images, the same
    for all, and seeds of either side on top. The p-value is twice the smaller part of the resampled differences on
    either side of 0, so that it is below 0.05 where the interval excludes 0; at least 2 / (resamples + 1). Raises
    ValueError if the numbers of images or classes differ.
    """
    return paired_differences([(a, b)], resamples=resamples, seed=seed)[0]


def paired_differences(
    pairs: Sequence[tuple[Side, Side]], *, resamples: int = RESAMPLES, seed: int = 0
) -> list[Difference]:
    """Return :func:`paired_difference` of every pair, all over the same number of images, drawn once for all."""
    listed = [tuple([side] if isinstance(side, np.ndarray) else list(side) for side in pair) for pair in pairs]
    for sides in listed:
        shapes = {records.shape for side in sides for records in side}
        if len(shapes) != 1 or not all(sides):
            raise ValueError(f"records of different shapes cannot be paired: {sorted(shapes)}")
    sizes = {len(sides[0][0]) for sides in listed}
    if len(sizes) > 1:
        raise ValueError(f"pairs over different numbers of images: {sorted(sizes)}")
    if not sizes or sizes == {0}:
        return [Difference(math.nan, math.nan, math.nan, math.nan, 0) for _ in listed]
    (n,) = sizes
    rngs = [numpy_rng(seed, "bootstrap of seeds", *map(len, sides)) for sides in listed]
    drawn: list[list[F64]] = [[] for _ in listed]
    for times in resample_counts(n, resamples, seed):
        for sides, rng, parts in zip(listed, rngs, drawn, strict=True):
            first, second = (_mean_over_seeds(times, side, rng) for side in sides)
            parts.append(first - second)
    return [_difference(sides, np.concatenate(parts), n) for sides, parts in zip(listed, drawn, strict=True)]


def _mean_over_seeds(times: F64, side: Sequence[Records], rng: np.random.Generator) -> F64:
    """Return the mean scores (m,) of seeds that are drawn with replacement, when images count ``times`` (m, n)."""
    scores = np.stack([_scores(times, records) for records in side], 1)
    if len(side) == 1:
        return scores[:, 0]
    mean: F64 = (scores * rng.multinomial(len(side), np.full(len(side), 1 / len(side)), len(times))).sum(1) / len(side)
    return mean


def _difference(sides: Sequence[Sequence[Records]], differences: F64, n: int) -> Difference:
    value = float(np.mean([score(one) for one in sides[0]]) - np.mean([score(one) for one in sides[1]]))
    differences = differences[np.isfinite(differences)]
    beyond = min((differences <= 0).sum(), (differences >= 0).sum())
    p = min(1.0, 2 * (1 + float(beyond)) / (len(differences) + 1))
    return Difference(value, *percentile_interval(differences), p, n)


@dataclass(frozen=True)
class McNemar:
    """In how many images only the first, and only the second, is right; the exact two-sided p-value of equal parts."""

    only_a: int
    only_b: int
    p: float


def mcnemar(a: ArrayLike, b: ArrayLike) -> McNemar:
    """Compare hits (n,) of the same images (McNemar 1947), exactly. Raises ValueError if lengths differ."""
    first, second = (np.asarray(one, dtype=bool) for one in (a, b))
    if first.shape != second.shape or first.ndim != 1:
        raise ValueError(f"hits of shapes {first.shape} and {second.shape} cannot be paired")
    only_a, only_b = int((first & ~second).sum()), int((second & ~first).sum())
    p = min(1.0, 2 * float(bdtr(min(only_a, only_b), only_a + only_b, 0.5))) if only_a + only_b else 1.0
    return McNemar(only_a, only_b, p)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the p-values adjusted for their number (Holm 1979), in the order given.

    Those up to a level are the comparisons that hold together at that level.
    """
    order = np.argsort(p_values, kind="stable")
    adjusted = np.empty(len(p_values))
    steps = np.asarray(p_values, dtype=np.float64)[order] * np.arange(len(p_values), 0, -1)
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1.0) if len(p_values) else steps
    return adjusted.tolist()


@dataclass(frozen=True, eq=False)
class CrossFit:
    """The best block, chosen on one half of the images and scored on the other, both ways.

    ``chosen`` are the blocks that score the first and the second half; ``value`` is the score over all images, each by
    the block chosen without it, of ``records``; ``oracle_block`` and ``oracle`` are the best block on all images and
    its score there, which choosing on the reported images would have given.
    """

    chosen: tuple[str, str]
    value: float
    records: Records
    oracle_block: str
    oracle: float

    @property
    def optimism(self) -> float:
        """How much the score of the block chosen on the reported images is above."""
        return self.oracle - self.value


def cross_fitted_best(records_by_block: Mapping[str, Records], *, seed: int = 0, lowest: bool = False) -> CrossFit:
    """Choose a block by cross-fitting over two random halves of the images. The first of equal blocks is taken.

    The best is the one of the highest score, or with ``lowest`` of the lowest.

    ``records_by_block`` are of the same images in the same order; the halves depend on their number and ``seed`` alone.
    Raises ValueError for no block, fewer than 2 images or different shapes.
    """
    shapes = {records.shape for records in records_by_block.values()}
    if len(shapes) != 1 or next(iter(shapes))[0] < 2:
        raise ValueError(f"a block cannot be chosen from records of shapes {sorted(shapes)}")
    n = next(iter(shapes))[0]
    halves = np.zeros((2, n))
    halves[0, numpy_rng(seed, "cross-fitting", n).permutation(n)[: n // 2]] = 1
    halves[1] = 1 - halves[0]
    blocks = list(records_by_block)
    table = np.stack([_scores(np.vstack([halves, np.ones(n)]), records) for records in records_by_block.values()])
    best = np.where(np.isfinite(table), -table if lowest else table, -np.inf).argmax(0)
    chosen = blocks[best[1]], blocks[best[0]]
    first, second = (records_by_block[block] for block in chosen)
    inside = halves[0].astype(bool).reshape(-1, *[1] * (first.ndim - 1))
    fitted = np.where(inside, first, second)
    return CrossFit(chosen, score(fitted), fitted, blocks[best[2]], float(table[best[2], 2]))
