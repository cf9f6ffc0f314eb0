"""The gradient of stacked depth heads against autograd through torch's own operations, in float64."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import dinoskip_dense.depth.bins as bins_module
from dinoskip_dense.depth.bins import bin_depths, expected_depth, logit_gradients, sig_loss

HEADS, BINS, IMAGES, GRID, SIZE = 3, 6, 4, (3, 4), (19, 26)


def made_up(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    logits = torch.randn(HEADS, BINS, IMAGES, *GRID, dtype=torch.float64, generator=rng)
    truth = 9 * torch.rand(IMAGES, *SIZE, dtype=torch.float64, generator=rng) + 0.5
    truth[torch.rand(truth.shape, generator=rng) < 0.2] = 0
    truth[0, :3] = 12  # beyond the farthest
    return logits, truth


def plain_loss(
    logits: torch.Tensor, truth: torch.Tensor, bins: torch.Tensor, times: int, variance: bool
) -> torch.Tensor:
    """One head on one group of images, as DINOv2's code has it."""
    features = logits.transpose(0, 1)
    if times > 1:
        features = F.interpolate(features, scale_factor=times, mode="bilinear")
    weights = torch.relu(features) + 0.1
    weights = weights / weights.sum(1, keepdim=True)
    depth = torch.einsum("ikmn,k->imn", weights, bins)[:, None]
    depth = F.interpolate(depth, size=truth.shape[1:], mode="bilinear", align_corners=False)[:, 0]
    known = (truth > 0) & (truth <= bins[-1])
    g = torch.log(depth[known] + 1e-3) - torch.log(truth[known] + 1e-3)
    return torch.sqrt(0.15 * g.mean() ** 2 + (torch.var(g) if variance else 0))


@pytest.mark.parametrize("chunk", [1, 500, 2**23])
@pytest.mark.parametrize(("times", "pooled", "variance"), [(1, 2, True), (4, 2, True), (2, 3, False), (4, 4, True)])
def test_slopes_are_autograds(
    times: int, pooled: int, variance: bool, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bins_module, "_CHUNK", {"cpu": chunk})
    monkeypatch.setattr(bins_module, "_BAND", {"cpu": chunk})
    monkeypatch.setattr(bins_module, "bilinear", lambda size, cells: float64_bilinear(size, cells))
    logits, truth = made_up()
    bins = bin_depths(BINS, 0.1, 10.0).double()
    have = logit_gradients(
        logits.reshape(HEADS * BINS, -1), GRID, truth, bins, times=times, pooled=pooled, variance=variance
    ).view_as(logits)
    leaf = logits.clone().requires_grad_()
    parts = [slice(at, at + pooled) for at in range(0, IMAGES, pooled)]
    total = sum(
        len(truth[part]) / IMAGES * plain_loss(head[:, part], truth[part], bins, times, variance)
        for head in leaf for part in parts
    )  # fmt: skip
    (wanted,) = torch.autograd.grad(total, leaf)
    torch.testing.assert_close(have, wanted, atol=1e-9, rtol=1e-6)


def float64_bilinear(size: int, cells: int) -> torch.Tensor:
    return F.interpolate(torch.eye(cells, dtype=torch.float64)[None], size=size, mode="linear")[0].T


def test_nothing_measured_moves_nothing() -> None:
    logits, truth = made_up()
    bins = bin_depths(BINS, 0.1, 10.0).double()
    have = logit_gradients(
        logits.reshape(HEADS * BINS, -1), GRID, torch.zeros_like(truth), bins, times=1, pooled=2, variance=True
    )
    assert float(have.abs().max()) == 0
    assert float(sig_loss(torch.ones(1, 1, 2, 2), torch.zeros(1, 2, 2), 10.0)) == 0


def test_bins_include_both_ends() -> None:
    bins = bin_depths(256, 1e-3, 10.0)
    assert (float(bins[0]), float(bins[-1])) == pytest.approx((1e-3, 10.0))
    sure = torch.full((1, 256, 1, 1, 1), -1.0)
    sure[0, 255] = 1e6
    assert float(expected_depth(sure, bins)) == pytest.approx(10.0, abs=1e-3)
