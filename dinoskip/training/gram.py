"""Gram anchoring: similarities among a student's patches must stay those of an earlier, or another, network.

facebookresearch/dinov3 ``gram_loss.py`` and ``ssl_meta_arch.py`` @6876159; the loss is the mean over entries.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from dinoskip.distributed import gather_rows
from dinoskip.training.addends_config import Level, Negatives


def gram_loss(
    student: Tensor,
    teacher: Tensor,
    mask: Tensor | None = None,
    *,
    level: Level = "image",
    negatives: Negatives = "keep",
    normalised: bool = True,
) -> Tensor:
    """Mean squared difference of the similarities of patches (B, N, D) of both, in at least float32.

    Patches are of one grid, see :func:`to_grid`. ``mask`` bool (B, N) says which count, at ``level`` batch, of
    this rank; without a mask level batch is of all ranks.
    """
    work = torch.promote_types(student.dtype, torch.float32)
    both = [one.to(work) for one in (student, teacher.detach())]
    if normalised:
        both = [F.normalize(one, dim=-1) for one in both]
    if level == "batch":
        both = [one.flatten(0, 1)[None] if mask is None else one[mask][None] for one in both]
        both = [gather_rows(one[0].contiguous())[None] for one in both] if mask is None else both
    own, theirs = (one @ one.transpose(1, 2) for one in both)
    if negatives == "none":
        own = own.clamp_min(0)
    if negatives != "keep":
        theirs = theirs.clamp_min(0)
    return (own - theirs).square().mean()


def to_grid(tokens: Tensor, grid: tuple[int, int], to: tuple[int, int], *, antialias: bool = False) -> Tensor:
    """A teacher's raw patches (B, h·w, D) of ``grid`` (h, w), resized bicubically to another grid."""
    if grid == to:
        return tokens
    tokens = tokens.to(torch.promote_types(tokens.dtype, torch.float32))
    plane = tokens.transpose(1, 2).reshape(len(tokens), -1, *grid)
    resized = F.interpolate(plane, to, mode="bicubic", align_corners=False, antialias=antialias)
    return resized.flatten(2).transpose(1, 2)
