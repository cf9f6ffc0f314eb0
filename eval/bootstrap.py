"""95 % intervals of the mIoU by the bootstrap over images (Efron 1979), percentile method.

They say how much a score would vary with other images drawn like these; they do not hold what another seed of training
would change.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dinoskip.statistics import RESAMPLES, mean_iou, percentile_interval, resample_counts


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
    scores: list[list[NDArray[np.float64]]] = [[] for _ in areas]
    for times in resample_counts(len(areas[0]), resamples, seed):
        for parts, each in zip(scores, areas, strict=True):
            summed = (times @ each.reshape(len(each), -1).astype(np.float64)).reshape(len(times), *each.shape[1:])
            right, predicted, labelled = (summed[:, i] for i in range(3))
            parts.append(mean_iou(right, predicted + labelled - right))
    return [percentile_interval(np.concatenate(parts)) for parts in scores]
