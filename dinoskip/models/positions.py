"""Fixed 2-D sine-cosine positions (Vaswani et al. 2017; facebookresearch/mae, util/pos_embed.py)."""

from __future__ import annotations

import torch
from torch import Tensor

BASE = 10_000.0  # Vaswani et al. 2017, section 3.5; MAE has the same


def sincos_positions(grid: tuple[int, int], dim: int, prefix: int = 1) -> Tensor:
    """Positions of ``prefix`` tokens, zeros, and of a ``grid`` (h, w) of patches: float64 (1, prefix + h·w, dim).

    The first half of the channels tells the column, the second the row; in each, sines come before cosines of
    frequencies 1 to 1/10,000. ``dim`` must be a multiple of 4 (ValueError).
    """
    if dim % 4:
        raise ValueError(f"{dim} channels: sine-cosine positions need a multiple of 4")
    frequencies = BASE ** -(torch.arange(dim // 4, dtype=torch.float64) / (dim // 4))
    angles = [torch.arange(side, dtype=torch.float64)[:, None] * frequencies for side in grid]  # (side, dim / 4)
    rows, columns = (torch.cat([angle.sin(), angle.cos()], dim=1) for angle in angles)
    patches = torch.cat([columns.repeat(grid[0], 1), rows.repeat_interleave(grid[1], dim=0)], dim=1)
    return torch.cat([torch.zeros(prefix, dim, dtype=torch.float64), patches])[None]
