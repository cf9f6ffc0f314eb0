"""Fixed 2-D sine-cosine positions (Vaswani et al. 2017; facebookresearch/mae, util/pos_embed.py)."""

from __future__ import annotations

import torch
from torch import Tensor

BASE = 10_000.0


def sincos_positions(grid: int, dim: int) -> Tensor:
    """Positions of a CLS token, zeros, and of ``grid`` × ``grid`` patches in raster order: float32 (1, 1 + grid², dim).

    The first half of the channels tells the column, the second the row; in each, sines come before cosines of
    frequencies 1 to 1/10,000. ``dim`` must be a multiple of 4 (ValueError).
    """
    if dim % 4:
        raise ValueError(f"{dim} channels: sine-cosine positions need a multiple of 4")
    frequencies = BASE ** -(torch.arange(dim // 4, dtype=torch.float64) / (dim // 4))
    angles = torch.arange(grid, dtype=torch.float64)[:, None] * frequencies  # (grid, dim / 4)
    along = torch.cat([angles.sin(), angles.cos()], dim=1)
    columns, rows = along.repeat(grid, 1), along.repeat_interleave(grid, dim=0)
    patches = torch.cat([columns, rows], dim=1).float()
    return torch.cat([torch.zeros(1, dim), patches])[None]
