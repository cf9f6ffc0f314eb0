"""The angle between predicted and true surface normals: the loss of many heads with its gradient, and the metrics.

Shapes: L heads, c = 3 or 4 channels (x, y, z and how sure), n images, h·w tokens, H·W pixels.
"""

from __future__ import annotations

import torch
from torch.nn.functional import cosine_similarity, elu, interpolate

from dinoskip_dense.depth.bins import upsampled

_EDGE = 1e-4  # of the cosine, so that its arc has a slope
LIMITS = (11.25, 22.5, 30.0)  # degrees: those that the field reports, probe3d too
NAMES = ("RMSE angle", *(f"within {limit:g}" for limit in LIMITS))
"""In the order of :func:`normal_scores`: degrees, then shares (0..1) of pixels within so many degrees."""


def angular_loss(predicted: torch.Tensor, truth: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """Return the loss (L,) of predictions (L, n, c, H, W) by unit normals (n, 3, H, W) at ``valid`` (n, H, W).

    Mean over all valid pixels of the angle a in radians; with a fourth channel k = ELU(it) + 1.01, of
    ln(1 + exp(-π k)) - ln(1 + k²) + k a (Bae et al. 2021, as probe3d has it). Zero where no pixel is valid.
    """
    cosine = cosine_similarity(predicted[:, :, :3], truth[None], dim=2)
    loss = cosine.clamp(-1 + _EDGE, 1 - _EDGE).acos()
    if predicted.shape[2] > 3:
        sure = elu(predicted[:, :, 3]) + 1.01  # ELU is above -1: at least 0.01 sure
        loss = (1 + (-sure * torch.pi).exp()).log() - (sure.square() + 1).log() + sure * loss
    return (loss * valid).flatten(1).sum(1) / valid.sum().clamp(min=1)


def logit_gradients(
    logits: torch.Tensor, grid: tuple[int, int], truth: torch.Tensor, valid: torch.Tensor, *, channels: int, times: int
) -> torch.Tensor:
    """Return the gradient of every head's loss by its logits (L·c, n·h·w), one head at a time."""
    count = len(truth)
    z = logits.view(-1, channels, count, *grid)
    gradient = torch.empty_like(z)
    for head in range(len(z)):
        with torch.enable_grad():
            leaf = z[head].detach().requires_grad_()
            pixels = to_pixels(leaf.transpose(0, 1)[None], (truth.shape[2], truth.shape[3]), times)
            (gradient[head],) = torch.autograd.grad(angular_loss(pixels, truth, valid).sum(), leaf)
    return gradient.view_as(logits)


def to_pixels(maps: torch.Tensor, size: tuple[int, int], times: int) -> torch.Tensor:
    """Return predictions (L, n, c, H, W) of maps (L, n, c, h, w): ``times`` bilinearly, then bicubic to the size."""
    fine = upsampled(maps, times).flatten(0, 1)
    return interpolate(fine, size=size, mode="bicubic", align_corners=False).view(*maps.shape[:3], *size)


def normal_scores(predicted: torch.Tensor, truth: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """Return float64 (..., 4), see :data:`NAMES`, of predictions (..., 3, H, W) for one image.

    ``truth`` are unit normals (3, H, W); pixels that are ``valid`` (H, W) count. NaN where none is.
    """
    known, true = predicted[..., valid], truth[:, valid]
    angles = cosine_similarity(known, true.expand_as(known), dim=-2).clamp(-1, 1).acos() * (180 / torch.pi)
    shares = [(angles < limit).to(torch.float64).mean(-1) for limit in LIMITS]
    return torch.stack([angles.square().mean(-1, dtype=torch.float64).sqrt(), *shares], -1)
