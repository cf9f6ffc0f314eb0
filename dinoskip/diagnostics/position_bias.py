"""Measure of how much of a token's place in the image its features hold, whatever the image shows (definition ours).

A ridge probe for row and column on held-out images, after tldr-group/dino-saw (arXiv:2603.16840), which takes one
image; and the share of the features' variance that lies between places. Content has a place, too (sky is above):
features of images under random flips and quarter turns have what remains.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class PositionBias(NamedTuple):
    """``r2`` is the mean of both axes', over all held-out tokens together; shares are of the features' variance."""

    r2_row: float
    r2_column: float
    r2: float
    position_share: float
    image_share: float
    position_share_corrected: float
    predictions: Tensor  # (B, h·w, 2), row and column in -1..1, of each image by the probe of the other folds


@torch.no_grad()
def position_bias(features: Tensor, grid: tuple[int, int], folds: int = 5, ridge: float = 1.0) -> PositionBias:
    """Measure patches (B, h·w, C) in raster order, in float64; of B >= 2 images, image i is in fold i mod ``folds``.

    On the other folds each channel is standardised (population deviation; a constant one is only centred), and a ridge
    regression with penalty ``ridge`` on the sum of squares and a free intercept is fitted in closed form.
    """
    x = features.double()
    batch, count, width = x.shape
    if batch < 2 or count != grid[0] * grid[1]:
        raise ValueError(f"position_bias: features must be (B, {grid[0]}·{grid[1]}, C) of at least 2 images")
    rows, columns = (torch.linspace(-1, 1, side, dtype=torch.float64) for side in grid)
    targets = torch.stack([rows.repeat_interleave(grid[1]), columns.repeat(grid[0])], dim=-1).to(x.device)
    folds, predictions = min(folds, batch), torch.empty(batch, count, 2, dtype=torch.float64, device=x.device)
    for fold in range(folds):
        held = torch.arange(batch, device=x.device) % folds == fold
        known = x[~held].flatten(0, 1)
        spread, mean = torch.std_mean(known, dim=0, unbiased=False)
        spread = torch.where(spread > 0, spread, 1.0)
        z, y = (known - mean) / spread, targets.repeat(int((~held).sum()), 1)
        gram = z.T @ z + ridge * torch.eye(width, dtype=torch.float64, device=x.device)
        weights = torch.linalg.solve(gram, z.T @ (y - y.mean(0)))
        predictions[held] = (x[held] - mean) / spread @ weights + y.mean(0)
    truth = targets.expand(batch, -1, -1)
    errors = (predictions - truth).square().sum((0, 1))
    total = (truth - truth.mean((0, 1))).square().sum((0, 1))
    row, column = (1 - errors / total.clamp_min(torch.finfo(torch.float64).tiny)).tolist()
    return PositionBias(row, column, (row + column) / 2, *_shares(x), predictions)


def _shares(x: Tensor) -> tuple[float, float, float]:
    """Shares of the variance between places, between images, and the first less what chance gives it."""
    batch, count, _ = x.shape
    mean = x.mean((0, 1))
    total = float((x - mean).square().sum())
    places = batch * float((x.mean(0) - mean).square().sum())
    images = count * float((x.mean(1) - mean).square().sum())
    if total == 0:
        return 0.0, 0.0, 0.0
    residual = (total - places - images) / ((batch - 1) * (count - 1)) if count > 1 else 0.0
    return places / total, images / total, (places - (count - 1) * residual) / total
