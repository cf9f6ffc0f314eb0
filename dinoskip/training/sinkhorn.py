"""Sinkhorn centring: a teacher's targets that use all prototypes alike (SwAV, arXiv:2006.09882; as DINOv2 has it).

facebookresearch/dinov2 ``dino_clstoken_loss.py`` @b8931f7, in logarithms: scores may be of any size.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from dinoskip.distributed import all_reduce_max, rank_and_size
from dinoskip.training.teacher_student import Centering

ITERATIONS = 3
LEAST = -80.0  # logarithm of the least share that a prototype is given: float32 holds its exponential


@torch.no_grad()
def sinkhorn(scores: Tensor, temperature: float, iterations: int = ITERATIONS) -> Tensor:
    """Logarithms of the shares (n, K) that n samples give to K prototypes, from the teacher's ``scores`` (n, K).

    exp(scores / temperature) is divided by each prototype's sum over all samples of all ranks, then by each sample's
    sum, ``iterations`` times, so that every sample's shares sum to 1. Ranks may have different numbers of samples.
    """
    shares = scores.to(torch.promote_types(scores.dtype, torch.float32)) / temperature
    for _ in range(iterations):
        shares = shares - _log_sum_of_samples(shares)
        shares = shares - shares.logsumexp(1, keepdim=True)
    return shares


def _log_sum_of_samples(shares: Tensor) -> Tensor:
    """ln of the sum of exp over the samples (n, K) of all ranks: (1, K)."""
    if rank_and_size()[1] == 1:
        return shares.logsumexp(0, keepdim=True)
    least = torch.finfo(shares.dtype).min
    highest = shares.amax(0) if len(shares) else torch.full_like(shares[:0].sum(0), least)
    highest = all_reduce_max(highest.contiguous())
    total = (shares - highest).exp().sum(0)
    dist.all_reduce(total)
    return (highest + total.log())[None]


class CentredTargets(NamedTuple):
    """Scores, centre and temperature, such that softmax((scores - centre) / temperature) are a teacher's targets."""

    scores: Tensor
    centre: Tensor
    temperature: float


def targets(scores: Tensor, centre: Tensor, temperature: float, centering: Centering) -> CentredTargets:
    """What :func:`dinoskip.training.dino.dino_loss` takes of the teacher, by either way of centring."""
    if centering == "centre":
        return CentredTargets(scores, centre, temperature)
    return CentredTargets(sinkhorn(scores, temperature).clamp_min(LEAST), torch.zeros_like(centre), 1.0)
