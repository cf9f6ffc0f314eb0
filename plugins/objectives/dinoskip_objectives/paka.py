"""Patch kernel alignment: patches of a crop must be as similar to one another as the teacher's at the same places.

1 - CKA of linear Gram matrices, an image each (arXiv:2509.05606 as lightly reads it: ``patch_kernel_alignment_loss.py``
@e8d317f, lightly-train ``dinov31`` @8f5a75c). It fixes relations alone: another loss must hold the rest.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torchvision.ops import roi_align

from dinoskip.models.heads import draw_layers_
from dinoskip.runtime.distributed import all_reduce_mean
from dinoskip.runtime.precision import at_least_float32
from dinoskip.training.addends_config import PakaConfig

LEAST = 1e-6  # of a kernel's square norm
MOST = 512  # tokens of an image


class Regions(NamedTuple):
    """Output of :class:`dinoskip_objectives.overlaps.Overlaps` for P pairs of views."""

    student: Tensor
    teacher: Tensor
    turned: Tensor
    valid: Tensor


class PakaHead(nn.Sequential):
    """Three linear layers with GELU between them. Weights depend on ``seed`` alone: normal 0.02, cut; biases zero."""

    def __init__(self, in_dim: int, config: PakaConfig, *, seed: int = 0) -> None:
        hidden, out = config.hidden_dim, config.out_dim
        super().__init__(
            nn.Linear(in_dim, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU(), nn.Linear(hidden, out)
        )
        draw_layers_(self, seed, "paka")


def aligned(patches: Tensor, regions: Tensor, turned: Tensor, out: int) -> Tensor:
    """Patches (V, n, C) of square grids sampled in ``regions`` (P, 5): (P, out·out, C), views ``turned`` (P,) back."""
    side = round(patches.shape[1] ** 0.5)
    plane = patches.transpose(1, 2).reshape(len(patches), -1, side, side)
    plane = at_least_float32(plane)
    sampled: Any = roi_align(plane, regions.to(plane), (out, out), aligned=True)
    sampled = torch.where(turned.view(-1, 1, 1, 1), sampled.flip(3), sampled)
    tokens: Tensor = sampled.flatten(2).transpose(1, 2)
    return tokens


def paka_per_image(student: Tensor, teacher: Tensor, valid: Tensor) -> Tensor:
    """1 - CKA (P,) of each image's ``valid`` (P, T) tokens (P, T, D) of both; NaN for fewer than two of them.

    Kernels are linear, of raw features, centred on both sides; the teacher has no gradient. In at least float32.
    """
    work = torch.promote_types(student.dtype, torch.float32)
    weights = valid.to(work)[..., None]
    count = weights.sum(1, keepdim=True)
    centred = [
        (tokens - (tokens * weights).sum(1, keepdim=True) / count.clamp_min(1)) * weights
        for tokens in (student.to(work), teacher.detach().to(work))
    ]
    student_gram, teacher_gram = (tokens @ tokens.transpose(1, 2) for tokens in centred)
    norms = [kernel.square().sum((1, 2)).clamp_min(LEAST).sqrt() for kernel in (student_gram, teacher_gram)]
    loss = 1 - (student_gram * teacher_gram).sum((1, 2)) / (norms[0] * norms[1])
    return torch.where(count.flatten() >= 2, loss, torch.nan)


def paka(student: Tensor, teacher: Tensor, valid: Tensor) -> Tensor:
    """Mean of :func:`paka_per_image` over the pairs of all ranks with ``valid`` (P,) tokens (P, T, D); 0 without any.

    More than 512 tokens of a pair are thinned, at random. The mean over ranks of its gradient is that of one rank.
    """
    if student.shape[1] > MOST:
        chosen = torch.rand(student.shape[:2], device=student.device).topk(MOST, dim=1).indices[..., None]
        student, teacher = (tokens.gather(1, chosen.expand(-1, -1, tokens.shape[2])) for tokens in (student, teacher))
    every = paka_per_image(student, teacher, valid[:, None].expand(student.shape[:2]))
    counted = every.isfinite() & valid
    pairs = all_reduce_mean(counted.sum().to(every.dtype))
    return torch.where(counted, every, 0).sum() / pairs.clamp_min(LEAST)
