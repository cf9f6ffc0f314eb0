"""The grid of patches that a file's position embedding is for: read off its length where one grid fits, else asked."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dinoskip.errors import ConfigError, WeightsError

Grid = tuple[int, int]
MOST_OBLONG = 2.5
"""Largest ratio of sides of a grid that is named as fitting: photographs and screens are at most 21:9."""


@dataclass(frozen=True)
class Positions:
    """A file's position embedding: how many positions, and of which tokens before the patches it may have some.

    ``before`` are the class token and the registers, ``registers`` those alone. ``told`` is how many of ``before`` have
    a position, where names of tensors say it.
    """

    count: int
    before: int
    registers: int = 0
    told: int | None = None

    @property
    def readings(self) -> tuple[int, ...]:
        """Numbers of tokens before the patches that may have positions: all of them or none."""
        return (self.told,) if self.told is not None else tuple(dict.fromkeys((self.before, 0)))


def checked_grid(grid: Any, where: str | Path) -> Grid | None:
    """The option ``grid``, rows x columns of patches: ``14x16``, (14, 16), or 14 for a square; None stays None."""
    if grid is None:
        return None
    found = re.fullmatch(r"(\d{1,4})(?:\s*[x×*]\s*(\d{1,4}))?", str(grid).strip())
    sides: Sequence[Any] = (found[1], found[2] or found[1]) if found else grid if isinstance(grid, list | tuple) else ()
    if len(sides) != 2 or not all(str(side).isdecimal() and int(side) for side in sides):
        raise ConfigError(f"{where}: grid={grid}: is not rows x columns of patches", "write grid=14x16")
    return int(sides[0]), int(sides[1])


def grid_of(positions: Positions, where: str | Path, grid: Grid | None = None) -> tuple[int, Grid]:
    """Return the number of positions of tokens before the patches, and the patches' grid (rows, columns).

    Squares are taken where nothing speaks against them. Raises :class:`WeightsError` where no square fits, or a square
    and a rectangle do that differ in whether the tokens before the patches have positions; :class:`ConfigError` for a
    ``grid`` of another number of patches.
    """
    count = positions.count
    fitting = [one for before in positions.readings for one in _grids(count - before)]
    if grid is not None:
        for before in positions.readings:
            if count - before == grid[0] * grid[1]:
                return before, grid
        given, of = grid[0] * grid[1], " or ".join(str(count - before) for before in positions.readings)
        raise ConfigError(
            f"{where}: grid={grid[0]}x{grid[1]}: is {given} patches, and {count} positions are of {of}", _ask(fitting)
        )
    squares = [(before, _side(count - before)) for before in positions.readings if _side(count - before)]
    if not squares:
        text = f"{where}: {count} positions are no square of patches, with or without a class token"
        raise WeightsError(text, _ask(fitting))
    # registers have no position in published networks, class tokens have one but in FlexiViT and DeiT III
    usual = 0 if positions.registers else positions.before
    before, side = next((square for square in squares if square[0] == usual), squares[0])
    if before == usual or positions.told is not None:
        return before, (side, side)
    others = _rectangles(count - usual)
    if others:
        raise WeightsError(_both(positions, where, side, usual, others), _ask([(side, side), *others]))
    return before, (side, side)


def _both(positions: Positions, where: str | Path, side: int, usual: int, others: Sequence[Grid]) -> str:
    tokens = "class token and registers" if positions.registers else "class token"
    named = " or ".join(f"{rows}×{columns}" for rows, columns in others)
    square, rectangle = ("with", "without") if positions.registers else ("without", "with")
    return (
        f"{where}: two grids fit its {positions.count} positions: {side}×{side} patches {square} positions of the "
        f"{tokens}, and {named} {rectangle} them"
    )


def _ask(grids: Sequence[Grid]) -> str:
    named = list(dict.fromkeys(f",grid={rows}x{columns}" for rows, columns in grids)) or [",grid=ROWSxCOLUMNS"]
    return "say which, rows x columns of patches: add " + " or ".join(named[:6])


def _side(patches: int) -> int:
    side = math.isqrt(patches) if patches > 0 else 0
    return side if side * side == patches else 0


def _grids(patches: int) -> list[Grid]:
    side = _side(patches)
    return [(side, side)] * (side > 0) + _rectangles(patches)


def _rectangles(patches: int) -> list[Grid]:
    """Grids of so many patches that are no squares, the ones nearest to a square first, lying and standing."""
    near = [
        (rows, patches // rows)
        for rows in range(math.isqrt(max(patches, 0)), 0, -1)
        if patches % rows == 0 and rows < patches // rows <= MOST_OBLONG * rows
    ]
    return [grid for rows, columns in near for grid in ((rows, columns), (columns, rows))]
