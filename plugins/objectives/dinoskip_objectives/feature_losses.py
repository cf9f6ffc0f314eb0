"""Losses of features: to those of a frozen teacher, KoLeo, Gram anchoring.

Those to a teacher are in at least float32 and differentiated in the student's features alone; call them outside
autocast. Sources, as read on 2026-11-23: lightly-train's three distillations (8f5a75c), Theia (59d0448), AM-RADIO
(arXiv:2312.06709).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from dinoskip.runtime.distributed import gather_rows
from dinoskip.runtime.precision import at_least_float32
from dinoskip.training.addends_config import Level, Negatives
from dinoskip_objectives.distill_config import CosineOver, PointLoss

COSINE, SMOOTH_L1 = 0.9, 0.1  # weights in Theia and AM-RADIO


def point_loss(student: Tensor, teacher: Tensor, kind: PointLoss, cosine_over: CosineOver = "token") -> Tensor:
    """Distance of features (B, N, D) to their targets of the same shape, a mean.

    ``mse`` and ``smooth_l1`` (beta 1) are means over every number, ``cosine`` is 1 - cosine, of every token, or, as in
    Theia's code, of an image's whole flattened map; ``cosine_smooth_l1`` is 0.9 and 0.1 of the two.
    """
    student, teacher = at_least_float32(student), at_least_float32(teacher)
    if kind == "mse":
        return F.mse_loss(student, teacher)
    if kind == "smooth_l1":
        return F.smooth_l1_loss(student, teacher)
    rows = (student, teacher) if cosine_over == "token" else (student.flatten(1), teacher.flatten(1))
    cosine = 1 - F.cosine_similarity(*rows, dim=-1).mean()
    return cosine if kind == "cosine" else COSINE * cosine + SMOOTH_L1 * F.smooth_l1_loss(student, teacher)


def intra_kl(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """KL(teacher ‖ student) of the softmax of each token's cosines to all tokens of its image; mean over tokens.

    ``student`` (B, N, D) and ``teacher`` (B, N, E) may differ in width.
    """
    scores = [similarities(at_least_float32(features)) / temperature for features in (student, teacher)]
    return _kl(*scores)


def similarities(tokens: Tensor) -> Tensor:
    """Cosines (B, N, N) of all tokens (B, N, D) of an image with one another, themselves included."""
    unit = F.normalize(tokens, dim=-1)
    return unit @ unit.transpose(-1, -2)


def queue_kl(student: Tensor, teacher: Tensor, queue: Tensor, temperature: float) -> Tensor:
    """KL(teacher ‖ student) of the softmax of each row's cosines to a queue (Q, D); mean over rows (B, D).

    The queue must already hold the teacher's rows (:func:`update_queue_`); its rows of zeros count as well.
    """
    unit = [F.normalize(at_least_float32(rows), dim=-1) for rows in (student, teacher)]
    return _kl(*(rows @ queue.to(rows.dtype).T / temperature for rows in unit))


@torch.no_grad()
def update_queue_(queue: Tensor, teacher: Tensor) -> None:
    """Put the teacher's rows (B, D) of all ranks, of unit length, before the queue (Q, D), in place.

    The oldest fall off its end; of more rows than it has the first stay.
    """
    newest = gather_rows(F.normalize(teacher.to(queue.dtype), dim=-1))
    queue.copy_(torch.cat([newest, queue])[: len(queue)])


def resized(
    tokens: Tensor, grid: tuple[int, int], to: tuple[int, int], mode: str = "bilinear", *, antialias: bool = False
) -> Tensor:
    """Tokens (B, h·w, D) of a ``grid`` (h, w) on another grid; as they are if it is the same, else at least float32."""
    if grid == to:
        return tokens
    plane = at_least_float32(tokens).transpose(1, 2).reshape(len(tokens), -1, *grid)
    return F.interpolate(plane, to, mode=mode, align_corners=False, antialias=antialias).flatten(2).transpose(1, 2)


def _kl(student: Tensor, teacher: Tensor) -> Tensor:
    """Return KL(teacher, student) of scores (..., N) over the last axis, averaged over all others."""
    divergence = F.kl_div(student.log_softmax(-1), teacher.log_softmax(-1), reduction="none", log_target=True)
    return divergence.sum(-1).mean()


EPS = 1e-8  # koleo_loss.py of DINOv2


def koleo(cls: Tensor, neighbours: int = 1, groups: int = 1) -> Tensor:
    """Mean of -ln(distance to the nearest other tokens) of one crop's CLS tokens (n, C), in at least float32.

    KoLeo (Sablayrolles et al. 2019, arXiv:1806.03198) as facebookresearch/dinov2 ``koleo_loss.py`` @b8931f7 has it;
    several neighbours and groups are dinov3's @6876159.
    Neighbours are looked for within each of ``groups`` of consecutive rows. The choice has no gradient, both ends of a
    distance have. 1e-8 stands at the published three places, so that equal tokens have a finite loss. Raises ValueError
    for a group of at most ``neighbours`` rows: a token is no neighbour of its own.
    """
    unit = F.normalize(at_least_float32(cls), eps=EPS, dim=-1)
    parts = unit.reshape(groups, -1, unit.shape[1])
    if parts.shape[1] <= neighbours:
        raise ValueError(f"KoLeo: {neighbours} nearest others among {parts.shape[1]} images")
    with torch.no_grad():
        alike = parts @ parts.transpose(1, 2)
        alike.diagonal(dim1=1, dim2=2).fill_(-1)
        nearest = alike.topk(neighbours, dim=-1).indices  # (groups, n, k)
    others = torch.stack([part[chosen] for part, chosen in zip(parts, nearest, strict=True)])
    distance = (parts[:, :, None] - others + EPS).norm(dim=-1)
    spread: Tensor = -(distance + EPS).log().mean()
    return spread


def koleo_of_crops(cls: Tensor, crops: int, neighbours: int) -> Tensor:
    """Sum of :func:`koleo` over crops of tokens (crops · B, C), crop-major, among the images of all ranks.

    The mean over ranks of its gradient is that of one rank with all images.
    """
    return torch.stack([koleo(gather_rows(crop.contiguous()), neighbours) for crop in cls.chunk(crops)]).sum()


def gram_loss(
    student: Tensor,
    teacher: Tensor,
    mask: Tensor | None = None,
    *,
    level: Level = "image",
    negatives: Negatives = "keep",
    normalised: bool = True,
) -> Tensor:
    """Gram anchoring: mean squared difference of the similarities of patches (B, N, D) of both, in at least float32.

    facebookresearch/dinov3 ``gram_loss.py`` and ``ssl_meta_arch.py`` @6876159; the loss is the mean over entries.
    Patches are of one grid, see :func:`resized`. ``mask`` bool (B, N) says which count, at ``level`` batch, of
    this rank; without a mask level batch is of all ranks.
    """
    work = torch.promote_types(student.dtype, torch.float32)
    both = [patches.to(work) for patches in (student, teacher.detach())]
    if normalised:
        both = [F.normalize(patches, dim=-1) for patches in both]
    if level == "batch":
        both = [patches.flatten(0, 1)[None] if mask is None else patches[mask][None] for patches in both]
        both = [gather_rows(patches[0].contiguous())[None] for patches in both] if mask is None else both
    student_gram, teacher_gram = (patches @ patches.transpose(1, 2) for patches in both)
    if negatives == "none":
        student_gram = student_gram.clamp_min(0)
    if negatives != "keep":
        teacher_gram = teacher_gram.clamp_min(0)
    return (student_gram - teacher_gram).square().mean()
