"""Depth metrics, the bins' depth and the loss against recorded outputs of independent implementations."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dinoskip_dense.depth.bins import bin_depths, expected_depth, sig_loss
from dinoskip_dense.depth.scores import NAMES, depth_scores
from tests.helpers.golden import recorded

GOLDEN, METRICS = recorded("dense", "depth")
_, HEADS = recorded("dense", "depthhead")
OURS = ("rmse", "abs_rel", "log10", "silog", "delta1", "delta2", "delta3", "rmse_log", "sq_rel")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("case", METRICS, ids=lambda case: case["name"])
def test_metrics_and_loss(case: dict, dtype: torch.dtype) -> None:
    low, high, which = case["min_depth"], case["max_depth"], case["crop"] or "all"
    tolerance = case["tolerance"]["relative" if dtype == torch.float64 else "float32_relative"]
    assert tuple(case["names"]) == OURS
    with np.load(GOLDEN / case["file"], allow_pickle=False) as data:
        pairs = [[torch.from_numpy(data[f"{kind}_{i}"]).to(dtype) for kind in ("pred", "gt")]
                 for i in range(case["images"])]  # fmt: skip
        scores = torch.stack([depth_scores(p, g, low, high, which) for p, g in pairs])
        np.testing.assert_allclose(scores.numpy(), data["per_image"], rtol=tolerance, atol=tolerance)
        losses = [float(sig_loss(p.clamp(low, high)[None, None], g[None], high)) for p, g in pairs]
        np.testing.assert_allclose(losses, data["sigloss"], rtol=tolerance)
    means = np.nanmean(scores.numpy(), axis=0)
    np.testing.assert_allclose(means, [case["expected"][name] for name in OURS], rtol=tolerance)


@pytest.mark.parametrize("case", HEADS, ids=lambda case: case["name"])
def test_depth_of_bins(case: dict) -> None:
    bins = bin_depths(case["bins"], case["min_depth"], case["max_depth"])
    with np.load(GOLDEN / case["file"], allow_pickle=False) as data:
        logits = torch.from_numpy(data["logits"]).transpose(0, 1)[None]  # (1, K, n, h, w)
        depth = expected_depth(logits, bins)[0]
        limit = case["tolerance"]["absolute_per_max_depth"] * case["max_depth"]
        np.testing.assert_allclose(depth.numpy(), data["depth_linear"], rtol=0, atol=limit)


def test_every_metric_is_compared() -> None:
    assert len(OURS) == len(NAMES)
