"""Sine-cosine positions against their definition, written out."""

from __future__ import annotations

import math

import pytest

from dinoskip.models.positions import sincos_positions


@pytest.mark.parametrize(("grid", "dim"), [(1, 4), (3, 8), (5, 20)])
def test_positions_are_those_of_the_definition(grid: int, dim: int) -> None:
    positions = sincos_positions((grid, grid), dim)
    assert positions.shape == (1, 1 + grid**2, dim)
    assert not positions[0, 0].any()
    quarter = dim // 4
    for row in range(grid):
        for column in range(grid):
            for half, place in enumerate((column, row)):
                for number in range(quarter):
                    angle = place / 10_000 ** (number / quarter)
                    have = positions[0, 1 + row * grid + column, 2 * half * quarter :]
                    assert have[number].item() == pytest.approx(math.sin(angle), abs=1e-6)
                    assert have[quarter + number].item() == pytest.approx(math.cos(angle), abs=1e-6)


def test_channels_that_cannot_be_shared_out_are_refused() -> None:
    with pytest.raises(ValueError, match="multiple of 4"):
        sincos_positions((2, 2), 6)
