"""AP of COCO by pycocotools, over classes, and its interval by the bootstrap over images.

Crowds and what is found in them count neither way. Of an image the 100 best objects count; objects of every size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dinoskip.statistics import RESAMPLES, percentile_interval, resample_counts
from eval.objects.scores import OVERLAPS, Entries, average_precision, coco_evaluation

F64 = NDArray[np.float64]
PARTS: Mapping[str, slice] = {"AP": slice(None), "AP50": slice(0, 1), "AP75": slice(5, 6)}
"""The overlaps that a metric is the mean over."""


@dataclass(frozen=True, eq=False)
class _OfClass:
    """What is found of one class, the best first: whether it hits (10, D), whether it counts (10, D), in which image.

    ``objects`` (n,) is how many of the class each image has.
    """

    hits: NDArray[np.bool_]
    counts: NDArray[np.bool_]
    images: NDArray[np.int64]
    objects: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class MatchedClasses:
    """``precision`` (10, classes), nan for a class without an object: AP at each overlap, by pycocotools."""

    precision: F64
    classes: Sequence[_OfClass]

    def ap(self, part: str) -> float:
        """Mean AP (0..1) over a part of the overlaps and the classes that have an object; nan if none has."""
        of_part = self.precision[PARTS[part]]
        return float(np.nanmean(of_part)) if np.isfinite(of_part).any() else math.nan

    def intervals(self, seed: int = 0, resamples: int = RESAMPLES) -> dict[str, tuple[float, float]]:
        """Intervals (0..1) of :meth:`ap` for all parts, by the bootstrap over images; nan for none."""
        images = len(self.classes[0].objects) if self.classes else 0
        if not images or not np.isfinite(self.precision).any():
            return dict.fromkeys(PARTS, (math.nan, math.nan))
        means: dict[str, list[F64]] = {part: [] for part in PARTS}
        for times in resample_counts(images, resamples, seed):
            every = np.stack([_resampled(matched, times) for matched in self.classes], -1)  # (10, m, classes)
            for part, which in PARTS.items():
                of_part = every[which]
                there = np.isfinite(of_part).any(axis=(0, 2))
                mean = np.full(len(times), np.nan)
                mean[there] = np.nanmean(of_part[:, there], axis=(0, 2))
                means[part].append(mean)
        return {part: percentile_interval(np.concatenate(of_part)) for part, of_part in means.items()}


def _resampled(kind: _OfClass, times: F64) -> F64:
    """AP (10, m) of a class where image i counts ``times[:, i]``."""
    of_found, objects = times[:, kind.images], times @ kind.objects
    rows = [
        average_precision(hits, of_found * counts, objects) for hits, counts in zip(kind.hits, kind.counts, strict=True)
    ]
    return np.stack(rows)


def match(truth: Entries, predicted: Entries, classes: Sequence[Any], kind: str) -> MatchedClasses:
    """Match what is found in n images to their objects (:func:`eval.objects.scores.coco_evaluation`)."""
    evaluation = coco_evaluation(truth, predicted, classes, kind)
    precision = evaluation.eval["precision"][..., 0, 0].mean(1)  # (overlaps, classes), -1 without an object
    each = len(truth)
    of_classes = [evaluation.evalImgs[at * each : (at + 1) * each] for at in range(len(classes))]
    return MatchedClasses(np.where(precision < 0, np.nan, precision), [_of_class(seen, each) for seen in of_classes])


def _of_class(images: Sequence[Mapping[str, Any] | None], count: int) -> _OfClass:
    """Collect pycocotools' answers for one class over all images, in the order in which detections count."""
    there = [image for image in images if image is not None]
    objects = np.zeros(count, dtype=np.int64)
    for image in there:
        objects[image["image_id"]] = int((np.asarray(image["gtIgnore"]) == 0).sum())
    scores = np.concatenate([np.asarray(image["dtScores"], dtype=np.float64) for image in there] or [np.zeros(0)])
    order = np.argsort(-scores, kind="stable")
    flags = [
        [np.asarray(image[name], dtype=bool).reshape(len(OVERLAPS), -1) for image in there]
        for name in ("dtMatches", "dtIgnore")
    ]
    matched, ignored = (
        np.concatenate(part or [np.zeros((len(OVERLAPS), 0), dtype=bool)], 1)[:, order] for part in flags
    )
    of_images = [np.full(len(image["dtScores"]), image["image_id"], dtype=np.int64) for image in there]
    where = np.concatenate(of_images or [np.zeros(0, dtype=np.int64)])[order]
    return _OfClass(matched & ~ignored, ~ignored, where, objects)
