"""Clusters matched to classes on a whole data set, and what images then contribute to the mIoU.

One-to-one, the match makes the matched pixels most (STEGO, PiCIE) or the sum of IoUs (Leopart); it is found by SciPy's
Hungarian method. More clusters than classes each go to the class that most of their pixels are of. Matched on the
images that are reported, as published, the mIoU is an upper estimate: our protocol matches on other halves of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from dinoskip.data.segmentation import IGNORE
from dinoskip.decisions.cross_fitting import SPLITS
from dinoskip.runtime.randomness import numpy_rng

I64 = NDArray[np.int64]
NO_CLASS = -1  # no label is below 0: such a cluster counts as wrong for every class


def confusion(clusters: NDArray[np.integer], labels: NDArray[np.integer], shape: tuple[int, int]) -> I64:
    """Count pixels by cluster and class, int64 ``shape`` (clusters, classes), of maps of one size; 255 is left out."""
    known = labels != IGNORE
    pairs = clusters[known].astype(np.int64) * shape[1] + labels[known]
    return np.bincount(pairs, minlength=shape[0] * shape[1]).reshape(shape)


def one_to_one(counts: I64, by: Literal["pixels", "iou"] = "pixels") -> I64:
    """Return the class of every cluster, -1 for those left over where there are fewer classes."""
    gain = counts.astype(np.float64)
    if by == "iou":
        union = counts.sum(1, keepdims=True) + counts.sum(0, keepdims=True) - counts
        gain = np.divide(counts, union, out=np.zeros(counts.shape), where=union > 0)
    clusters, classes = linear_sum_assignment(gain, maximize=True)
    chosen = np.full(len(counts), NO_CLASS, dtype=np.int64)
    chosen[clusters] = classes
    return chosen


def to_the_commonest(counts: I64) -> I64:
    """Return the commonest class of every cluster, the first of equals; -1 for one without a labelled pixel."""
    return np.where(counts.sum(1) > 0, counts.argmax(1), NO_CLASS)


def match(counts: I64, by: Literal["pixels", "iou"] = "pixels") -> I64:
    """Return the class of every cluster: one-to-one, or of more clusters than classes the commonest."""
    return one_to_one(counts, by) if counts.shape[0] <= counts.shape[1] else to_the_commonest(counts)


@dataclass(frozen=True, eq=False)
class ImageCounts:
    """The confusion (clusters, classes) of one image, without its zeros: an image has few of either."""

    pairs: NDArray[np.int32]
    pixels: NDArray[np.int32]

    @classmethod
    def of(cls, counts: I64) -> ImageCounts:
        """Return the entries of a confusion matrix that are not zero."""
        pairs = np.flatnonzero(counts)
        return cls(pairs.astype(np.int32), counts.ravel()[pairs].astype(np.int32))


def total_counts(images: Sequence[ImageCounts], shape: tuple[int, int]) -> I64:
    """Return the confusion of all images, int64 ``shape`` (clusters, classes)."""
    counts = np.zeros(shape[0] * shape[1], dtype=np.int64)
    for image in images:
        counts[image.pairs] += image.pixels
    return counts.reshape(shape)


def matched_areas(images: Sequence[ImageCounts], classes_of: I64, classes: int) -> I64:
    """Return areas (n, 3, classes) of every image (``ConfusionMatrix.areas``): pixels right, predicted, labelled.

    Pixels of a cluster without a class are predicted as none.
    """
    image, cluster, label, pixels = _entries(images, classes)
    return _areas(image, classes_of[cluster], label, pixels, (len(images), classes))


def cross_matched_areas(
    images: Sequence[ImageCounts], shape: tuple[int, int], by: Literal["pixels", "iou"] = "pixels", seed: int = 0
) -> I64:
    """Return the same, clusters matched on other images: the sum over :data:`SPLITS` random halves of the images.

    In each split the clusters of either half have the classes that :func:`match` gives on the other half, ``shape`` is
    (clusters, classes). Halves depend on the number of images and ``seed`` alone. One image is matched on itself.
    """
    n, (clusters, classes) = len(images), shape
    image, cluster, label, pixels = _entries(images, classes)
    if n < 2:
        return matched_areas(images, match(total_counts(images, shape), by), classes)
    areas, rng = np.zeros((n, 3, classes), dtype=np.int64), numpy_rng(seed, "matching", n)
    for _ in range(SPLITS):
        half = np.zeros(n, dtype=np.int64)
        half[rng.permutation(n)[: n // 2]] = 1
        where = (half[image] * clusters + cluster) * classes + label
        counts = np.bincount(where, pixels, 2 * clusters * classes).astype(np.int64).reshape(2, *shape)
        chosen = np.stack([match(counts[1], by), match(counts[0], by)])
        areas += _areas(image, chosen[half[image], cluster], label, pixels, (n, classes))
    return areas


def _entries(images: Sequence[ImageCounts], classes: int) -> tuple[I64, I64, I64, I64]:
    """Image, cluster, class and pixels of every entry of all confusions."""
    none = [np.zeros(0, dtype=np.int64)]
    pairs = np.concatenate([*none, *(counts.pairs for counts in images)])
    image = np.repeat(np.arange(len(images)), [len(counts.pairs) for counts in images])
    return image, *np.divmod(pairs, classes), np.concatenate([*none, *(counts.pixels for counts in images)])


def _areas(image: I64, predicted: I64, label: I64, pixels: I64, shape: tuple[int, int]) -> I64:
    right, has = predicted == label, predicted != NO_CLASS
    kinds = ((right, label), (has, predicted), (np.ones_like(has), label))
    sums = [np.bincount(image[of] * shape[1] + to[of], pixels[of], shape[0] * shape[1]) for of, to in kinds]
    return np.stack([total.reshape(shape) for total in sums], 1).astype(np.int64)
