"""What all adapters share."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from dinoskip.models.adapter import dino_positions
from tests.helpers.dino_modules import Dino


@pytest.mark.parametrize("grid", [(14, 14), (30, 40), (40, 30), (7, 28), (5, 5), (15, 14), (60, 60)])
def test_positions_by_dinos_own_rule(grid: tuple[int, int]) -> None:
    network = Dino(patch_size=16, dim=24, img_size=224, depth=0)
    tokens, (h, w) = torch.zeros(1, grid[0] * grid[1] + 1, 24), grid
    expected = network.interpolate_pos_encoding(tokens, 16 * h, 16 * w)
    assert torch.equal(dino_positions(network.pos_embed, grid), expected)
    plain = network.pos_embed[:, 1:].reshape(1, 14, 14, 24).permute(0, 3, 1, 2)
    resized = F.interpolate(plain, size=grid, mode="bicubic", antialias=True).permute(0, 2, 3, 1).flatten(1, 2)
    assert torch.equal(expected[:, 1:], resized) == (grid == (14, 14))
