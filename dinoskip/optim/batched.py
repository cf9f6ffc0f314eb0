"""Batches of matrices: parameters cut into pieces, and pieces of one shape stacked.

A step is then a handful of batched operations a shape instead of a loop over tensors. ``optimizer.state[p]`` holds
views of the stacks, so state is stored and restored per parameter. What has no basis at all is laid end to end in flat
stacks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dinoskip.runtime.distributed import all_ranks
from dinoskip.runtime.precision import exact_products

Shape = tuple[int, ...]
Group = dict[str, Any]
State = dict[str, Any]


# --- how a parameter is cut ------------------------------------------------------------------------------


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


def as_matrix(shape: Shape) -> Shape:
    """A kernel as (out, all else); what has at most two dimensions larger than 1 is left as it is."""
    # The reference gives each of a kernel's four dimensions a basis (`as_matrix: false`). A patch embedding is a linear
    # map of a patch's pixels, and preconditioned as one.
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


def step_flops(piece: Piece) -> tuple[float, float]:
    """Floating-point operations of a plain step: into the bases and back; factors."""
    once = 2.0 * math.prod(piece.core) * sum(piece.core[at] for at, _ in piece.factors)
    return 2 * once, once


def refresh_flops(piece: Piece, *, eigh: bool) -> tuple[float, float]:
    """Count a refresh: F Q and exp_avg in the new bases; Householder's QR (8/3 n^3) or eigenvectors (9 n^3)."""
    cubes = sum(float(piece.core[at]) ** 3 for at, _ in piece.factors)
    turned, _ = step_flops(piece)
    return (turned, 9 * cubes) if eigh else (turned + 2 * cubes, 8 / 3 * cubes)


def mean_flops(piece: Piece, group: Group) -> tuple[float, float, float]:
    """Count a mean step: rotations; factors and the products of a refresh; decompositions."""
    rotations, factors = step_flops(piece)
    products, decompositions = refresh_flops(piece, eigh=group.get("variant") == "ecs")
    period = group["precondition_frequency"]
    return rotations, factors + products / period, decompositions / period


# --- stacks ----------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Slot:
    """A piece of one parameter and its own ``shape``; what the state holds for it (name: shape), which slots it may
    be stacked with (those of its ``key``), the rank that owns it, and its turn among the shapes at a refresh.
    """

    parameter: Tensor
    piece: Piece
    shape: Shape
    stored: dict[str, Shape]
    key: tuple[Any, ...]
    owner: int = 0
    turn: int = 0

    def of(self, tensor: Tensor) -> Tensor:
        """The piece's part of a whole tensor of the parameter's shape."""
        return tensor if self.piece.cut is None else tensor.reshape(self.piece.shape)[self.piece.cut]


class Stack:
    """The state of ``slots`` as stacked tensors, ``step`` updates old (None: no gradient seen yet).

    ``tensors`` holds ``exp_avg`` and ``exp_avg_sq`` (B, *core), and for each dimension i with a basis ``factor_i``
    and ``basis_i`` (B, n, n) and what else the optimizer keeps. In a flat stack core is the total size, and B is 1.
    On a rank whose it is not (``mine``), it holds no tensors.
    """

    def __init__(self, slots: list[Slot], step: int | None, states: MutableMapping[Tensor, State]) -> None:
        self.slots, self.step, self.owner = slots, step, slots[0].owner
        self.states = states  # of the optimizer, by parameter
        self.owned = self.owner == all_ranks().rank
        self.flat = slots[0].key[-1] == "flat"
        self.core = (sum(math.prod(slot.shape) for slot in slots),) if self.flat else slots[0].piece.core
        self.factors = () if self.flat else slots[0].piece.factors
        self.tensors: dict[str, Tensor] = {}

    def __len__(self) -> int:
        return 1 if self.flat else len(self.slots)

    def empty(self) -> Tensor:
        """Return an uninitialised float32 tensor of (B, *core)."""
        return torch.empty(len(self), *self.core, dtype=torch.float32, device=self.slots[0].parameter.device)

    def join(self, parts: list[Tensor]) -> Tensor:
        """Stack a tensor of each slot, in the slot's own shape, as float32 (B, *core)."""
        stacked = torch.cat([part.reshape(-1) for part in parts]) if self.flat else torch.stack(parts)
        return stacked.reshape(len(self), *self.core).float()

    def spread(self, stacked: Tensor) -> list[Tensor]:
        """The inverse of :meth:`join`: views of a (B, *core) tensor, one a slot."""
        if self.flat:
            parts = torch.split(stacked.view(-1), [math.prod(slot.shape) for slot in self.slots])
            return [part.view(slot.shape) for part, slot in zip(parts, self.slots, strict=True)]
        return list(stacked.view(len(self), *self.slots[0].shape).unbind())

    def begin(self) -> None:
        """Fill ``tensors`` for a start: zero moments and factors, identity bases."""
        for key, shape in self.slots[0].stored.items():
            if key.startswith("exp_"):
                self.tensors[key] = self.empty().zero_()
            elif key.startswith("basis_"):
                identity = torch.eye(shape[0], dtype=torch.float32, device=self.slots[0].parameter.device)
                self.tensors[key] = identity.repeat(len(self), 1, 1)
            else:
                self.tensors[key] = self.tensors["exp_avg"].new_zeros(len(self), *shape)

    def load(self) -> None:
        """Stack the states of the slots' parameters."""
        for key in self.slots[0].stored:
            parts = [self.states[slot.parameter][slot.piece.label(key)] for slot in self.slots]
            self.tensors[key] = self.join(parts) if key.startswith("exp_") else torch.stack(parts)

    def publish(self) -> None:
        """Let the states of the parameters show (views of) the tensors of this stack."""
        for key, tensor in self.tensors.items():
            parts = self.spread(tensor) if key.startswith("exp_") else tensor.unbind()
            for slot, part in zip(self.slots, parts, strict=True):
                self.states[slot.parameter][slot.piece.label(key)] = part

    def project(self, tensor: Tensor, *, back: bool = False, bases: Mapping[str, Tensor] | None = None) -> Tensor:
        """A (B, *core) tensor in the eigenbasis (Q^T of every dimension that has one), or ``back`` out of it."""
        for at, position in self.factors:
            basis = (self.tensors if bases is None else bases)[f"basis_{position}"]
            tensor = along(tensor, basis.mT if back else basis, at)
        return tensor

    def add_gram(self, at: int, position: int, tensor: Tensor, beta: float, alpha: float) -> None:
        """Factor = ``beta`` * factor + ``alpha`` * Gram matrix of dimension ``at`` of ``tensor`` (B, *core)."""
        if math.prod(self.core[at + 1 :]) == 1:
            columns = tensor.reshape(len(self), -1, self.core[at])
            rows = columns.mT
        else:
            rows = tensor.movedim(at + 1, 1).reshape(len(self), self.core[at], -1)
            columns = rows.mT
        with exact_products(tensor.device):
            self.tensors[f"factor_{position}"].baddbmm_(rows, columns, beta=beta, alpha=alpha)


def along(tensor: Tensor, matrix: Tensor, at: int) -> Tensor:
    """Contract dimension ``at`` (0 = the first after the batch) of (B, *core) with the rows of (B, n, n)."""
    batch, core = len(tensor), tensor.shape[1:]
    before, size, after = math.prod(core[:at]), core[at], math.prod(core[at + 1 :])
    if after == 1:
        result = torch.bmm(tensor.reshape(batch, before, size), matrix)
    elif before == 1:
        result = torch.bmm(matrix.mT, tensor.reshape(batch, size, after))
    else:
        result = matrix.mT.unsqueeze(1) @ tensor.reshape(batch, before, size, after)
    return result.view(tensor.shape)
