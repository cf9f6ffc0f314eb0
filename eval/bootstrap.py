"""95 % intervals of scores by the bootstrap over images (Efron 1979), percentile method.

They say how much a score would vary with other images drawn like these; they do not hold what another seed of training
would change. Images are drawn with replacement, as many as there are; a share (CorLoc, accuracy) needs no drawing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import binom

from dinoskip.randomness import numpy_rng

RESAMPLES = 1000
_ENDS = (0.025, 0.975)
_DRAWS = 2**22  # numbers drawn at once: 32 MiB


def share_interval(hits: ArrayLike) -> tuple[float, float]:
    """Return the interval (0..1) of the share of true in bool (n,); nan if n is 0.

    Of n images drawn with replacement, the number that are hits is binomial (n, share): the limit of infinitely many
    resamples, without one.
    """
    found = np.asarray(hits, dtype=bool)
    if not found.size:
        return float("nan"), float("nan")
    low, high = binom.ppf(_ENDS, found.size, found.mean()) / found.size
    return float(low), float(high)


def draws(images: int, resamples: int, seed: int) -> Iterator[NDArray[np.float64]]:
    """Yield how often each image is drawn, (m, images) of whole numbers, rows in all ``resamples``; bounded memory.

    A function of the number of images and the seed alone, so that scores of the same images share their resamples.
    """
    rng = numpy_rng(seed, "bootstrap", images)
    step = max(1, _DRAWS // images)
    for at in range(0, resamples, step):
        rows = min(step, resamples - at)
        chosen = rng.integers(0, images, (rows, images)) + images * np.arange(rows)[:, None]
        yield np.bincount(chosen.ravel(), minlength=rows * images).reshape(rows, images).astype(np.float64)


def miou_intervals(
    areas: Sequence[NDArray[np.integer]], seed: int = 0, resamples: int = RESAMPLES
) -> list[tuple[float, float]]:
    """Return the interval (0..1) of each mIoU over a data set; nan if it has no image or no pixel.

    ``areas`` holds for each score (n, 3, K): of every image and class, the pixels that are right, predicted and
    labelled (``ConfusionMatrix.areas``), all that the mIoU needs of the image's confusion matrix. The areas of a
    resample are summed before ratios are taken, and classes that it lacks are left out, as in the score itself.
    """
    if not areas or not len(areas[0]):
        return [(float("nan"), float("nan"))] * len(areas)
    found: list[list[NDArray[np.float64]]] = [[] for _ in areas]
    for times in draws(len(areas[0]), resamples, seed):
        for scores, each in zip(found, areas, strict=True):
            summed = (times @ each.reshape(len(each), -1).astype(np.float64)).reshape(len(times), *each.shape[1:])
            scores.append(_miou(summed))
    return [_ends(np.concatenate(scores)) for scores in found]


def _miou(areas: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return (m,) of areas (m, 3, K); nan where no class has a pixel."""
    right = areas[:, 0]
    union = areas[:, 1] + areas[:, 2] - right
    there = union > 0
    iou = np.divide(right, union, out=np.zeros_like(right), where=there)
    count = there.sum(1)
    mean: NDArray[np.float64] = np.divide(iou.sum(1), count, out=np.full(len(count), np.nan), where=count > 0)
    return mean


def _ends(scores: NDArray[np.float64]) -> tuple[float, float]:
    finite = scores[np.isfinite(scores)]
    if not finite.size:
        return float("nan"), float("nan")
    low, high = np.quantile(finite, _ENDS)
    return float(low), float(high)
