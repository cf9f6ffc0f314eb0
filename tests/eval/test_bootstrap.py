"""Intervals of the mIoU against plain loops."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dinoskip.statistics import resample_counts
from eval.bootstrap import miou_intervals
from eval.metrics import ConfusionMatrix, scores_of_areas


@pytest.mark.parametrize("seed", [0, 1])
def test_miou_equals_a_loop_over_confusion_matrices(seed: int) -> None:
    rng = np.random.default_rng(seed)
    matrices = []
    for _ in range(6):  # a class of four occurs in the last image alone
        matrix = ConfusionMatrix(5)
        matrix.update(rng.integers(0, 3, 30), rng.choice([0, 1, 2, 255], 30))
        matrices.append(matrix)
    matrices[-1].update(np.array([3]), np.array([3]))
    areas = np.stack([matrix.areas for matrix in matrices])
    wanted = []
    for times in np.concatenate(list(resample_counts(6, 200, seed))).astype(int):
        total = ConfusionMatrix(5)
        total.counts += sum(count * matrix.counts for count, matrix in zip(times, matrices, strict=True))
        wanted.append(total.scores().miou)
    low, high = np.quantile(wanted, [0.025, 0.975])
    assert miou_intervals([areas, areas.astype(np.int32)], seed, 200) == [pytest.approx((low, high), abs=1e-12)] * 2
    assert low <= scores_of_areas(areas.sum(0)).miou <= high


def test_miou_of_equal_images_does_not_vary_and_of_none_is_nan() -> None:
    one = np.array([[3, 1, 0], [5, 2, 0], [4, 3, 0]])
    ((low, high),) = miou_intervals([np.stack([one] * 8)])
    assert low == high == scores_of_areas(one).miou == pytest.approx((3 / 6 + 1 / 4) / 2)
    for nothing in (np.zeros((0, 3, 2), int), np.zeros((4, 3, 2), int)):
        ((low, high),) = miou_intervals([nothing])
        assert math.isnan(low)
        assert math.isnan(high)
    assert miou_intervals([]) == []
