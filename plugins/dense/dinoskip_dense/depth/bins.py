"""Depth as the mean of bins, with its gradient, and the loss of its logarithm; for many heads at once.

Shapes: L heads, K bins, n images, h·w places. The bins are evenly spaced with both ends among them; their weights are
ReLU of the logits plus 0.1, divided by their sum (AdaBins' linear norm, as DINOv2 has it).
"""

from __future__ import annotations

import math

import torch
from torch.nn.functional import interpolate

from eval.upsampling import bilinear

_OFFSET = 0.1  # on the ReLU, so that no bin's weight is 0: DINOv2's depth head
_SAFE = 1e-3  # metres added before the logarithm
_MEAN_SHARE = 0.15  # of SigLoss; 1 would be the plain mean square of g, 0 would ignore the scale
_CHUNK = {"cpu": 2**18, "cuda": 2**27}  # logits of tokens whose heads are done together
_BAND = {"cpu": 2**20, "cuda": 2**27}  # logits at places held at once: a CPU wants them in its cache


def bin_depths(count: int, low: float, high: float, device: torch.device | None = None) -> torch.Tensor:
    """Return the depths of the bins, float32 (K,), both ends included."""
    return torch.linspace(low, high, count).to(device, non_blocking=True)


def _weighed(positive: torch.Tensor, bins: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return depth and the sum of weights, each (L, n, ...), for ReLU of the logits (L, K, n, ...)."""
    moments = torch.stack([torch.ones_like(bins), bins])
    total, first = (moments @ positive.flatten(2)).unbind(1)
    total, first = total + _OFFSET * len(bins), first + _OFFSET * bins.sum()
    shape = (positive.shape[0], *positive.shape[2:])
    return (first / total).view(shape), total.view(shape)


def expected_depth(logits: torch.Tensor, bins: torch.Tensor) -> torch.Tensor:
    """Return the depth (L, n, ...) of logits (L, K, n, ...), in the bins' dtype."""
    return _weighed(logits.clamp(min=0), bins)[0]


def upsampled(logits: torch.Tensor, times: int) -> torch.Tensor:
    """Return logits (..., h, w) interpolated bilinearly to (..., times·h, times·w), align_corners=False."""
    if times == 1:
        return logits
    rows, columns = (bilinear(times * cells, cells).to(logits.device) for cells in logits.shape[-2:])
    return rows @ (logits @ columns.T)


def sig_loss(depth: torch.Tensor, truth: torch.Tensor, farthest: float, *, variance: bool = True) -> torch.Tensor:
    """Return the loss (L,) of depth (L, n, H, W) in metres by ``truth`` (n, H, W), 0 where not measured.

    sqrt(var(g) + 0.15 mean(g)²) of g = ln(depth + 0.001) - ln(truth + 0.001) over all pixels 0 < truth <= ``farthest``
    of the n images, the variance unbiased (Eigen et al. 2014; SigLoss of the Monocular-Depth-Estimation-Toolbox); in
    the reference's first steps without the ``variance``. Zero where nothing is measured.
    """
    # DINOv2's configuration adds half of a gradient loss. As coded it slices the axes of batch and channels, and is 0
    # at the published two images a GPU: it is left out.
    known = ((truth > 0) & (truth <= farthest)).to(depth.dtype)
    count = known.sum()
    g = ((depth + _SAFE).log() - (truth.clamp(min=0) + _SAFE).log()) * known
    mean = g.flatten(1).sum(1) / count.clamp(min=1)
    loss = _MEAN_SHARE * mean.square()
    if variance:
        spread = ((g - mean[:, None, None, None]) * known).square().flatten(1).sum(1)
        loss = loss + spread / (count - 1).clamp(min=1)
    return loss.clamp(min=1e-20).sqrt() * (count > 1)  # the root has no slope at 0


def logit_gradients(
    logits: torch.Tensor,
    grid: tuple[int, int],
    truth: torch.Tensor,
    bins: torch.Tensor,
    *,
    times: int,
    pooled: int,
    variance: bool,
) -> torch.Tensor:
    """Return the gradient of the loss of every head by its logits (L·K, n·h·w), of the same shape.

    ``truth`` (n, H, W) are the depths in metres. Logits are interpolated to ``times`` as many places, the depth there
    to pixels; the loss is the mean of :func:`sig_loss` over groups of ``pooled`` images.
    """
    heads, count = logits.shape[0] // len(bins), len(truth)
    z = logits.view(heads, len(bins), count, *grid)
    gradient = torch.empty_like(z)
    step = max(1, _CHUNK[z.device.type] // (len(bins) * pooled * grid[0] * grid[1]))
    for at in range(0, count, pooled):
        images = slice(at, at + pooled)
        share = len(truth[images]) / count
        for first in range(0, heads, step):
            part = slice(first, first + step)
            gradient[part, :, images] = share * _slope(z[part, :, images], truth[images], bins, times, variance)
    return gradient.view_as(logits)


def _slope(z: torch.Tensor, truth: torch.Tensor, bins: torch.Tensor, times: int, variance: bool) -> torch.Tensor:
    """The gradient of :func:`sig_loss` by logits (L, K, n, h, w).

    Logits at all places never exist at once: bands of rows are made, and made again on the way back.
    """
    rows, columns = (bilinear(times * cells, cells).to(z.device) for cells in z.shape[-2:])
    wide = z if times == 1 else z @ columns.T
    height = max(1, _BAND[z.device.type] // wide[..., 0, :].numel())
    bands = _bands(z.shape[-2], times, height)
    parts = [_weighed(_band(wide, rows, times, band).clamp_(min=0), bins) for band in bands]
    depth, total = (torch.cat(of, 2) for of in zip(*parts, strict=True))
    with torch.enable_grad():
        leaf = depth.detach().requires_grad_()
        pixels = interpolate(leaf, size=truth.shape[1:], mode="bilinear", align_corners=False)
        (by_depth,) = torch.autograd.grad(sig_loss(pixels, truth, float(bins[-1]), variance=variance).sum(), leaf)
    scale = (by_depth / total)[:, None]
    offset = -depth[:, None] * scale
    by_wide = torch.zeros_like(wide)
    for fine, coarse in bands:
        # of a weight: (bin - depth) / total, where the logit is above 0
        by_fine = torch.addcmul(offset[..., fine, :], bins[:, None, None, None], scale[..., fine, :])
        by_fine.mul_(_band(wide, rows, times, (fine, coarse)) > 0)
        if times == 1:
            by_wide[..., fine, :] = by_fine
        else:
            by_wide[..., coarse, :] += rows[fine, coarse].T @ by_fine
    return by_wide if times == 1 else by_wide @ columns


def _band(wide: torch.Tensor, rows: torch.Tensor, times: int, band: tuple[slice, slice]) -> torch.Tensor:
    """A new tensor with the rows of places of a band, of logits (..., h, columns) that are interpolated along rows."""
    fine, coarse = band
    return wide[..., fine, :].clone() if times == 1 else rows[fine, coarse] @ wide[..., coarse, :]


def _bands(cells: int, times: int, height: int) -> list[tuple[slice, slice]]:
    """Bands of ``height`` rows of ``times`` · ``cells`` places, each with the rows of tokens that it is made of."""
    bands = []
    for first in range(0, times * cells, height):
        last = min(first + height, times * cells) - 1
        above, below = (((place + 0.5) / times - 0.5) for place in (first, last))
        bands.append((slice(first, last + 1), slice(max(0, math.floor(above)), min(cells, math.floor(below) + 2))))
    return bands
