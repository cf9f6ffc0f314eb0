"""Same-shape matrices in one tensor: the state of many parameters as (B, m, n) stacks.

A stack holds the pieces (see :mod:`dinoskip.optim.layout`) that have the same shape and have taken the same number
of steps. ``optimizer.state[p]`` holds views of the stacks, so state is stored and restored per parameter, and a stack
is a function of those states: after a resume the same stacks form and the arithmetic is the same, bit for bit.
What has no basis at all is laid end to end in one flat stack a group.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dinoskip.optim.layout import Piece
from dinoskip.precision import exact_products

State = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Slot:
    """A piece of one parameter, and the key of the stacks it may be in."""

    parameter: Tensor
    piece: Piece
    key: tuple[Any, ...]

    def of(self, tensor: Tensor) -> Tensor:
        """The piece's part of a whole tensor of the parameter's shape."""
        return tensor if self.piece.cut is None else tensor.reshape(self.piece.shape)[self.piece.cut]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of :meth:`of`."""
        return tuple(self.parameter.shape) if self.piece.cut is None else self.piece.dims

    def stored(self, *, second_moment: bool, roots: bool) -> dict[str, tuple[int, ...]]:
        """Name and shape of every tensor that the state of the parameter holds for this piece."""
        factors = self.piece.factors
        shapes = {"exp_avg": self.shape}
        if second_moment or not factors:
            shapes["exp_avg_sq"] = self.shape
        for at, position in factors:
            size = self.piece.core[at]
            shapes |= {f"factor_{position}": (size, size), f"basis_{position}": (size, size)}
            if roots:
                shapes[f"root_{position}"] = (size,)
        return {self.piece.label(key): shape for key, shape in shapes.items()}


class Stack:
    """The state of ``slots`` as stacked tensors, ``step`` updates old (None: no gradient seen yet).

    ``tensors`` holds ``exp_avg`` and ``exp_avg_sq`` (B, *core), and for each dimension i with a basis ``factor_i``
    and ``basis_i`` (B, n, n) and what else the optimizer keeps. In a flat stack core is the total size, and B is 1.
    """

    def __init__(self, slots: list[Slot], step: int | None) -> None:
        self.slots, self.step = slots, step
        self.flat = slots[0].key[-1] == "flat"
        self.core = (sum(math.prod(slot.shape) for slot in slots),) if self.flat else slots[0].piece.core
        self.factors = () if self.flat else slots[0].piece.factors
        self.tensors: dict[str, Tensor] = {}

    def __len__(self) -> int:
        return 1 if self.flat else len(self.slots)

    @property
    def parameters(self) -> list[Tensor]:
        """The parameters of the slots, in order."""
        return [slot.parameter for slot in self.slots]

    def gather(self, whole: Callable[[Tensor], Tensor]) -> Tensor:
        """Stack what ``whole`` gives for each parameter (its gradient, say) as float32 (B, *core)."""
        parts = [slot.of(whole(slot.parameter)) for slot in self.slots]
        stacked = torch.cat([part.reshape(-1) for part in parts]) if self.flat else torch.stack(parts)
        return stacked.reshape(len(self), *self.core).float()

    def spread(self, stacked: Tensor) -> list[Tensor]:
        """The inverse of :meth:`gather`: views of a (B, *core) tensor, one a slot, in the slot's own shape."""
        if self.flat:
            parts = torch.split(stacked.view(-1), [math.prod(slot.shape) for slot in self.slots])
            return [part.view(slot.shape) for part, slot in zip(parts, self.slots, strict=True)]
        return list(stacked.view(len(self), *self.slots[0].shape).unbind())

    def zeros(self) -> Tensor:
        """Return float32 zeros of (B, *core)."""
        return torch.zeros(len(self), *self.core, dtype=torch.float32, device=self.slots[0].parameter.device)

    def begin(self, *, second_moment: bool) -> None:
        """Fill ``tensors`` for a start: zero moments and factors, identity bases."""
        self.tensors["exp_avg"] = self.zeros()
        if second_moment or not self.factors:
            self.tensors["exp_avg_sq"] = self.zeros()
        for at, position in self.factors:
            size = self.core[at]
            one = torch.eye(size, dtype=torch.float32, device=self.tensors["exp_avg"].device)
            self.tensors[f"factor_{position}"] = one.new_zeros(len(self), size, size)
            self.tensors[f"basis_{position}"] = one.repeat(len(self), 1, 1)
        self.step = 0

    def load(self, states: Mapping[Tensor, State]) -> None:
        """Stack the states of the slots' parameters. They must have the same keys."""
        first = self.slots[0]
        prefix = first.piece.label("")
        names = [name for name in states[first.parameter] if name.startswith(prefix) and name != "step"]
        for key in [name.removeprefix(prefix) for name in names]:
            parts = [states[slot.parameter][slot.piece.label(key)] for slot in self.slots]
            if key in ("exp_avg", "exp_avg_sq"):
                stacked = torch.cat([p.reshape(-1) for p in parts]) if self.flat else torch.stack(parts)
                self.tensors[key] = stacked.reshape(len(self), *self.core)
            else:
                self.tensors[key] = torch.stack(parts)

    def publish(self, states: Mapping[Tensor, State], keys: Sequence[str] | None = None) -> None:
        """Let the states of the parameters show (views of) ``keys`` of this stack, and its step."""
        for key in self.tensors if keys is None else keys:
            tensor = self.tensors[key]
            parts = self.spread(tensor) if key in ("exp_avg", "exp_avg_sq") else tensor.unbind()
            for slot, part in zip(self.slots, parts, strict=True):
                states[slot.parameter][slot.piece.label(key)] = part
        for slot in self.slots:
            states[slot.parameter]["step"] = self.step

    def rotate(self, tensor: Tensor, *, back: bool = False, bases: Mapping[str, Tensor] | None = None) -> Tensor:
        """A (B, *core) tensor in the eigenbasis (Q^T of every dimension that has one), or ``back`` out of it."""
        for at, position in self.factors:
            basis = (self.tensors if bases is None else bases)[f"basis_{position}"]
            tensor = along(tensor, basis.mT if back else basis, at)
        return tensor

    def learn(self, gradient: Tensor, beta: float) -> None:
        """Move the factors towards the Gram matrices of ``gradient`` (B, *core), one a dimension."""
        for at, position in self.factors:
            self.add_gram(at, position, gradient, beta, 1 - beta)

    def add_gram(self, at: int, position: int, tensor: Tensor, beta: float, alpha: float) -> None:
        """Factor = ``beta`` * factor + ``alpha`` * Gram matrix of dimension ``at`` of ``tensor`` (B, *core)."""
        rows, columns = unfolded(tensor, at)
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


def unfolded(tensor: Tensor, at: int) -> tuple[Tensor, Tensor]:
    """(B, *core) as a matrix (B, n, rest) whose rows are dimension ``at``, and its transpose."""
    batch, core = len(tensor), tensor.shape[1:]
    if math.prod(core[at + 1 :]) == 1:
        columns = tensor.reshape(batch, -1, core[at])
        return columns.mT, columns
    rows = tensor.movedim(at + 1, 1).reshape(batch, core[at], -1)
    return rows, rows.mT
