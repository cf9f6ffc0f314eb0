"""KoLeo (Sablayrolles et al. 2019, arXiv:1806.03198) as DINOv2 has it: no two images' CLS tokens side by side.

facebookresearch/dinov2 ``koleo_loss.py`` @b8931f7; several neighbours and groups are dinov3's @6876159.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from dinoskip.distributed import gather_rows

EPS = 1e-8


def koleo(cls: Tensor, neighbours: int = 1, groups: int = 1) -> Tensor:
    """Mean of -ln(distance to the nearest other tokens) of one crop's CLS tokens (n, C), in at least float32.

    Neighbours are looked for within each of ``groups`` of consecutive rows. The choice has no gradient, both ends of a
    distance have. 1e-8 stands at the published three places, so that equal tokens have a finite loss.
    """
    unit = F.normalize(cls.to(torch.promote_types(cls.dtype, torch.float32)), eps=EPS, dim=-1)
    parts = unit.reshape(groups, -1, unit.shape[1])
    with torch.no_grad():
        alike = parts @ parts.transpose(1, 2)
        alike.diagonal(dim1=1, dim2=2).fill_(-1)
        nearest = alike.topk(min(neighbours, parts.shape[1]), dim=-1).indices  # (groups, n, k)
    others = torch.stack([part[chosen] for part, chosen in zip(parts, nearest, strict=True)])
    distance = (parts[:, :, None] - others + EPS).norm(dim=-1)
    spread: Tensor = -(distance + EPS).log().mean()
    return spread


def koleo_of_crops(cls: Tensor, crops: int, neighbours: int) -> Tensor:
    """Sum of :func:`koleo` over crops of tokens (crops · B, C), crop-major, among the images of all ranks.

    The mean over ranks of its gradient is that of one rank with all images.
    """
    return torch.stack([koleo(gather_rows(one.contiguous()), neighbours) for one in cls.chunk(crops)]).sum()
