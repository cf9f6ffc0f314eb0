"""How a parameter is cut into the tensors that get a preconditioner: shapes only, no numbers."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Piece:
    """A part of a parameter (mostly all of it) with one basis for each of its dimensions that has one.

    The parameter is viewed as ``shape``; the piece is ``cut`` out of that (None: all of it) and has dimensions
    ``dims``, of which ``sided`` says which carry a basis. It is number ``index`` of the parameter's ``count`` pieces.
    """

    shape: Shape
    cut: tuple[slice, ...] | None
    dims: Shape
    sided: tuple[bool, ...]
    index: int = 0
    count: int = 1

    @property
    def core(self) -> Shape:
        """The dimensions larger than 1. A basis of size 1 is the number 1 and need not be stored."""
        return tuple(size for size in self.dims if size > 1)

    @property
    def factors(self) -> tuple[tuple[int, int], ...]:
        """(position in ``core``, position in ``dims``) of every dimension with a stored basis."""
        large = [position for position, size in enumerate(self.dims) if size > 1]
        return tuple((at, position) for at, position in enumerate(large) if self.sided[position])

    def label(self, key: str) -> str:
        """The name of the piece's ``key`` in the state of its parameter."""
        return key if self.count == 1 else f"piece{self.index}_{key}"


def merge_from_left(shape: Shape, limit: int) -> Shape:
    """Merge neighbouring dimensions while their product is at most ``limit`` (SOAP's ``merge_dims``)."""
    merged: list[int] = []
    running = 1
    for size in shape:
        if running * size <= limit:
            running *= size
        elif running > 1:
            merged.append(running)
            running = size
        else:
            merged.append(size)
    return (*merged, running) if running > 1 or not merged else tuple(merged)


def merge_from_right(shape: Shape, limit: int) -> Shape:
    """Drop dimensions of size 1, then merge from the last while the product is at most ``limit`` (Meta's Shampoo)."""
    sizes = [size for size in shape if size != 1] or [1]
    merged = [sizes[-1]]
    for size in reversed(sizes[:-1]):
        if merged[0] * size <= limit:
            merged[0] *= size
        else:
            merged.insert(0, size)
    return tuple(merged)


def as_matrix(shape: Shape) -> Shape:
    """A kernel as (out, all else); what has at most two dimensions larger than 1 is left as it is."""
    if sum(size > 1 for size in shape) <= 2:
        return shape
    sizes = [size for size in shape if size > 1]
    return (sizes[0], math.prod(sizes[1:]))


def row_blocks(shape: Shape, sided: tuple[bool, ...], blocks: int) -> list[Piece]:
    """Cut ``shape`` into ``blocks`` equal parts along its first dimension; ValueError if they are not equal."""
    if blocks == 1:
        return [Piece(shape, None, shape, sided)]
    if len(shape) < 2 or shape[0] % blocks:
        raise ValueError(f"a parameter of shape {shape} cannot be cut into {blocks} blocks of rows")
    rows = shape[0] // blocks
    dims = (rows, *shape[1:])
    cuts = [(slice(i * rows, (i + 1) * rows), *(slice(None),) * (len(shape) - 1)) for i in range(blocks)]
    return [Piece(shape, cut, dims, sided, i, blocks) for i, cut in enumerate(cuts)]


def tiles(shape: Shape, limit: int) -> list[Piece]:
    """Cut ``shape`` into blocks of at most ``limit`` a side, the last of a side smaller; every side has a basis."""
    sides = [[slice(at, min(at + limit, size)) for at in range(0, size, limit)] for size in shape]
    cuts = list(itertools.product(*sides))
    sided = (True,) * len(shape)
    if len(cuts) == 1:
        return [Piece(shape, None, shape, sided)]
    return [
        Piece(shape, cut, tuple(part.stop - part.start for part in cut), sided, i, len(cuts))
        for i, cut in enumerate(cuts)
    ]
