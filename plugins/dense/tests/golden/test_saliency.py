"""Saliency scores against recorded outputs of TokenCut's metric.py and FOUND's."""

from __future__ import annotations

import numpy as np
import pytest

from dinoskip_dense.saliency import count_masks, f_curve
from tests.helpers.golden import recorded

GOLDEN, CASES = recorded("dense", "saliency")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_equals_reference(case: dict) -> None:
    expected, tolerance = case["expected"], case["tolerance"]
    with np.load(GOLDEN / case["file"], allow_pickle=False) as stored:
        data = dict(stored)
    curves, iou, accuracy = [], [], []
    for i in range(case["images"]):
        soft, truth = data[f"pred_{i}"], data[f"gt_{i}"]
        curves.append(f_curve(soft, truth))
        counts = count_masks((soft > 0.5)[None], truth)
        iou.append(counts.iou[0])
        accuracy.append(counts.accuracy[0])
        if set(np.unique(soft)) <= {0, 1}:  # of a mask every threshold says the same
            assert np.ptp(curves[-1]) == 0
            assert counts.f[0] == curves[-1][0]
    np.testing.assert_allclose(curves, data["F"], rtol=0, atol=tolerance)
    np.testing.assert_allclose(iou, data["iou"], rtol=0, atol=tolerance)
    np.testing.assert_allclose(accuracy, data["accuracy"], rtol=0, atol=tolerance)
    mean = np.mean(curves, axis=0)
    assert mean.max() == pytest.approx(expected["maxF_tokencut"], abs=tolerance)
    assert mean.argmax() == expected["threshold_index"]
    assert np.max(curves, axis=1).mean() == pytest.approx(expected["mean_of_per_image_maxF"], abs=tolerance)
    assert (np.mean(iou), np.mean(accuracy)) == pytest.approx((expected["iou"], expected["accuracy"]), abs=tolerance)
