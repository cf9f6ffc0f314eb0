"""Saliency scores against counting pixel by pixel."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dinoskip_dense.saliency.scores import count_masks, f_curve


def f_by_hand(mask: np.ndarray, truth: np.ndarray) -> float:
    right = predicted = there = 0
    for said, label in zip(mask.ravel().tolist(), truth.ravel().tolist(), strict=True):
        if label != 255:
            right, predicted, there = right + (said and label > 0), predicted + said, there + (label > 0)
    precision, recall = right / predicted if predicted else 1.0, right / there if there else 1.0
    return 1.3 * precision * recall / (0.3 * precision + recall) if precision + recall else 0.0


@given(seed=st.integers(0, 10**6), empty=st.sampled_from(["", "truth", "prediction", "both"]))
@settings(max_examples=30, deadline=None)
def test_every_threshold_is_counted(seed: int, empty: str) -> None:
    rng = np.random.default_rng(seed)
    truth = rng.choice([0, 1, 7, 255], (5, 6)).astype(np.uint8)
    soft = np.clip(rng.normal(0.5, 0.5, (5, 6)), -0.2, 1.2)
    soft.flat[:4] = 0, 1, 100 / 255, 1 / 255  # exactly at a threshold: not above it
    truth = np.zeros_like(truth) if empty in {"truth", "both"} else truth
    soft = np.zeros_like(soft) if empty in {"prediction", "both"} else soft
    wanted = [f_by_hand(soft > k / 255, truth) for k in range(255)]
    np.testing.assert_allclose(f_curve(soft, truth), wanted, rtol=0, atol=1e-12)


@given(seed=st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_masks_are_counted_without_the_ignored(seed: int) -> None:
    rng = np.random.default_rng(seed)
    truth, masks = rng.choice([0, 1, 255], (4, 5)).astype(np.uint8), rng.random((3, 4, 5)) < 0.5
    counts = count_masks(masks, truth)
    known = truth != 255
    for i, mask in enumerate(masks):
        said, there = mask[known], truth[known] == 1
        union = (said | there).sum()
        assert counts.iou[i] == ((said & there).sum() / union if union else 1.0)
        assert abs(counts.accuracy[i] - ((said == there).mean() if known.any() else 1.0)) < 1e-12
        assert abs(counts.f[i] - f_by_hand(mask, truth)) < 1e-12
