"""95 % intervals of the mIoU over images, of the classes of the reported set (:func:`dinoskip.statistics.interval`).

They say how much a score would vary with other images drawn like these; they do not hold what another seed of training
would change.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dinoskip.statistics import interval


def miou_interval(areas: NDArray[np.integer]) -> tuple[float, float]:
    """Return the interval (0..1) of the mIoU over a data set; nan if it has fewer than 2 images or no pixel.

    ``areas`` (n, 3, K) are of every image and class the pixels that are right, predicted and labelled
    (``ConfusionMatrix.areas``), all that the mIoU needs of the image's confusion matrix.
    """
    right, predicted, labelled = (areas[:, i].astype(np.int64) for i in range(3))
    return interval(np.stack([right, predicted + labelled - right], -1), labelled.sum(0))
