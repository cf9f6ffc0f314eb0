"""Affinity graphs of so many tokens that no matrix of them is made: similarities come in tiles, edges as bits.

Every tile of the upper triangle is one product of normalised rows, and stands for its mirror too, so that edges are
symmetric to the bit. On a CPU a binary graph keeps one bit an edge, packed by eights of rows. A product with a vector
looks up, for each eight, the sum of the vector's values that the byte of a column stands for (the method of four
Russians, Arlazarov et al., 1970), and so reads a 64th of what the dense matrix has. Where not even the bits fit, in
weighted graphs and on a GPU, every product makes the tiles again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dinoskip.runtime.precision import exact_products
from eval.tokencut.memory import TILE, packs

U8 = NDArray[np.uint8]
_BYTE = 8  # bits, one an edge
_CODES = ((np.arange(256)[None] >> np.arange(_BYTE)[:, None]) & 1).astype(np.float64)  # (8, 256): bits of each byte
_SWAPS = ((7, 0x00AA00AA00AA00AA), (14, 0x0000CCCC0000CCCC), (28, 0x00000000F0F0F0F0))  # Warren, Hacker's Delight 7-3


@dataclass(frozen=True, eq=False)
class Tiles:
    """The similarities (B, n, n) of normalised rows ``unit``, float32 (B, n, C), that are never whole."""

    unit: Tensor

    def __len__(self) -> int:
        return len(self.unit)

    @property
    def tokens(self) -> int:
        """Tokens n of every image."""
        return self.unit.shape[1]

    def take(self, which: Sequence[int]) -> Tiles:
        """Return the similarities of the images ``which``."""
        return Tiles(self.unit[list(which)])

    def without(self, image: int, tokens: NDArray[np.bool_]) -> Tiles:
        """Return the similarities with those of these ``tokens`` (n,) of an image, even to themselves, 0."""
        unit = self.unit.clone()
        unit[image, torch.from_numpy(tokens).to(unit.device)] = 0.0
        return Tiles(unit)

    def rows(self, image: int, tokens: Tensor) -> Tensor:
        """Return the rows (k, n) of the similarities of the ``tokens`` (k,) of an image."""
        unit = self.unit[image]
        with exact_products(unit.device):
            return unit[tokens] @ unit.T

    def of(self, image: int) -> Iterator[tuple[slice, slice, Tensor]]:
        """Yield the tiles of the upper triangle: rows, columns, similarities; those on the diagonal are symmetric."""
        unit, starts = self.unit[image], range(0, self.tokens, TILE)
        for at in starts:
            left = unit[at : at + TILE]
            for other in range(at, self.tokens, TILE):
                right = unit[other : other + TILE]
                rows, columns = slice(at, at + len(left)), slice(other, other + len(right))
                yield rows, columns, _product(left, right, diagonal=at == other)

    def positive(self, image: int) -> Tensor:
        """Return int64 (n,): how many tokens each is positively similar to, itself included."""
        counts = torch.zeros(self.tokens, dtype=torch.int64, device=self.unit.device)
        for rows, columns, tile in self.of(image):
            positive = tile > 0
            counts[rows] += positive.sum(1)
            if rows != columns:
                counts[columns] += positive.sum(0)
        return counts


def _product(left: Tensor, right: Tensor, *, diagonal: bool) -> Tensor:
    """Return ``left @ right.T``, float32, symmetric to the bit on the ``diagonal``."""
    if not left.is_cuda:  # NumPy multiplies one triangle of a matrix by itself and copies it
        rows = left.numpy()
        return torch.from_numpy(rows @ (rows.T if diagonal else right.numpy().T))
    with exact_products(left.device):
        tile = left @ right.T
    return tile.triu() + tile.triu(1).T if diagonal else tile


class Edges(Protocol):
    """The edges of one graph of n tokens, symmetric."""

    def product(self, vector: NDArray[np.float64] | Tensor) -> NDArray[np.float64] | Tensor:
        """Return the edges times a ``vector`` (n,), float64 of its kind; sums of integers are exact."""
        ...


@dataclass(frozen=True, eq=False)
class PackedEdges:
    """0/1 edges as bits, uint8 (G, n), G eights of rows: bit j of [g, c] is the edge of tokens 8 g + j and c."""

    bits: U8

    @classmethod
    def of(cls, similar: Tiles, image: int, level: float) -> PackedEdges:
        """Join the tokens whose similarity is greater than float32 ``level``."""
        n = similar.tokens
        bits = np.empty((-(-n // _BYTE), n), np.uint8)
        for rows, columns, tile in similar.of(image):
            packed = _packed(np.greater(tile.numpy(), np.float32(level)))
            bits[_eights(columns), rows] = packed.T[:, : rows.stop - rows.start]
            if rows != columns:
                bits[_eights(rows), columns] = _transposed(packed)[:, : columns.stop - columns.start]
        return cls(bits)

    def product(self, vector: NDArray[np.float64] | Tensor) -> NDArray[np.float64]:
        """Return the edges times a ``vector`` (n,), float64 (:class:`Edges`)."""
        groups, n = self.bits.shape
        padded = np.zeros(groups * _BYTE)
        padded[:n] = np.asarray(vector)
        sums = padded.reshape(groups, _BYTE) @ _CODES
        result, part = np.zeros(n), np.empty(n)
        for of_group, codes in zip(sums, self.bits, strict=True):
            np.take(of_group, codes, out=part, mode="clip")  # no byte is outside; the default would copy to be safe
            result += part
        return result


def _eights(tokens: slice) -> slice:
    """Return which eights the tokens of a tile are in; tiles begin at multiples of eight."""
    return slice(tokens.start // _BYTE, -(-tokens.stop // _BYTE))


def _packed(edges: NDArray[np.bool_]) -> U8:
    """Return edges (r, c) as bits along rows, uint8, r a multiple of 8: (8 ⌈r/8⌉, ⌈c/8⌉)."""
    short = -len(edges) % _BYTE
    packed: U8 = np.packbits(np.pad(edges, ((0, short), (0, 0))) if short else edges, axis=1, bitorder="little")
    return packed


def _transposed(packed: U8) -> U8:
    """Return bits along rows (8 R, C) as bits along columns (R, 8 C): each square of eight is transposed."""
    rows, columns = len(packed) // _BYTE, packed.shape[1]
    squares = np.ascontiguousarray(packed.reshape(rows, _BYTE, columns).swapaxes(1, 2))
    x = squares.view("<u8")[..., 0]
    for shift, mask in _SWAPS:
        moved = (x ^ (x >> np.uint64(shift))) & np.uint64(mask)
        x = x ^ moved ^ (moved << np.uint64(shift))
    turned: U8 = np.ascontiguousarray(x.astype("<u8")).view(np.uint8).reshape(rows, _BYTE * columns)
    return turned


@dataclass(frozen=True, eq=False)
class ComputedEdges:
    """Edges that every product makes again: 0/1 above ``level``, or (``fill`` given) the similarity, below it that."""

    similar: Tiles
    image: int
    level: float
    fill: float | None = None

    def product(self, vector: NDArray[np.float64] | Tensor) -> NDArray[np.float64] | Tensor:
        """Return the edges times a ``vector`` (n,), float64 (:class:`Edges`)."""
        given = vector if isinstance(vector, Tensor) else torch.from_numpy(vector)
        result = torch.zeros_like(given)
        for rows, columns, tile in self.similar.of(self.image):
            edges = tile > self.level if self.fill is None else tile.masked_fill(tile < self.level, self.fill)
            edges = edges.double()
            result[rows] += edges @ given[columns]
            if rows != columns:
                result[columns] += edges.T @ given[rows]
        return result if isinstance(vector, Tensor) else result.numpy()


@dataclass(frozen=True, eq=False)
class LargeEdges:
    """The edges of B graphs of one number of tokens."""

    graphs: tuple[Edges, ...]

    @classmethod
    def of(cls, similar: Tiles, level: float, fill: float | None = None) -> LargeEdges:
        """Edges of every image: of bits where these fit (:func:`eval.tokencut.memory.packs`), else computed."""
        if fill is None and not similar.unit.is_cuda and packs(similar.tokens):
            return cls(tuple(PackedEdges.of(similar, image, level) for image in range(len(similar))))
        return cls(tuple(ComputedEdges(similar, image, level, fill) for image in range(len(similar))))

    def product(self, vectors: NDArray[np.float64] | Tensor, scale: float) -> NDArray[np.float64] | Tensor:
        """Return ``scale`` times the edges times ``vectors`` (B, n)."""
        products = [edges.product(vector) for edges, vector in zip(self.graphs, vectors, strict=True)]
        if isinstance(vectors, Tensor):
            return scale * torch.stack([torch.as_tensor(product) for product in products])
        return scale * np.stack([np.asarray(product) for product in products])

    def take(self, which: NDArray[np.intp]) -> LargeEdges:
        """Return those of the graphs ``which``."""
        return LargeEdges(tuple(self.graphs[i] for i in which.tolist()))
