"""KL-Shampoo and KL-SOAP (Lin et al., arXiv 2509.03378), for stacks of matrices.

Shampoo's factors estimated by minimising a Kullback-Leibler divergence: each side's factor is the mean of gradients
whitened by the other side. The eigenvalues are estimated every step in the present basis. Takes the steps of
github.com/yorkerlin/KL-Methods in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dinoskip.optim.batched import Group, Piece, Shape, Stack, along, as_matrix, row_blocks
from dinoskip.optim.config import KLShampooConfig
from dinoskip.optim.preconditioned import PreconditionedOptimizer
from dinoskip.optim.soap import adam_, power_iteration, refresh_bases, sorted_eigenvectors

LEAST_CLAMP = 10  # of the authors: 1/sqrt(eigenvalue) may always reach this


_DEFAULT = KLShampooConfig()


class KLShampoo(PreconditionedOptimizer):
    """KL-Shampoo, or KL-SOAP with ``using_klsoap`` (Adam in KL-Shampoo's basis), with batched state.

    Kernels count as matrices (out, all else); a dimension larger than ``max_precond_dim`` has no basis; what is no
    matrix takes Adam's step with the same betas. The first gradient of a parameter only starts its state, there is
    no bias correction for matrices, and decay multiplies by 1 - lr * weight_decay after the update. ``init_factor``
    is the first eigenvalue of every factor; with ``using_clamping`` 1/sqrt(eigenvalue) is at most
    min(n, ``max_clamp_value``) for a side of n (never less than 10); ``using_damping`` adds ``eps`` in the estimates.
    Every argument may also be set for a parameter group; ``blocks`` cuts by rows (3 for a fused qkv), ``stagger`` and
    ``tf32`` are those of SOAP.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = _DEFAULT.betas,
        shampoo_beta: float = _DEFAULT.shampoo_beta,
        eps: float = _DEFAULT.eps,
        weight_decay: float = 0.01,
        precondition_frequency: int = _DEFAULT.precondition_frequency,
        using_klsoap: bool = _DEFAULT.klsoap,
        normalize_grads: bool = _DEFAULT.normalize_grads,
        init_factor: float = _DEFAULT.init_factor,
        using_damping: bool = _DEFAULT.damping,
        using_clamping: bool = True,
        max_clamp_value: float = 4000,
        *,
        max_precond_dim: int = _DEFAULT.max_precond_dim,
        blocks: int = 1,
        stagger: bool = _DEFAULT.stagger,
        tf32: bool = _DEFAULT.tf32,
    ) -> None:
        # Every argument is a setting of a group.
        settings = {key: value for key, value in locals().items() if key not in ("self", "params", "__class__")}
        if init_factor <= 0:
            raise ValueError("init_factor must be positive")
        super().__init__(params, settings)

    def _pieces(self, shape: Shape, group: Group) -> list[Piece]:
        shape = as_matrix(shape)
        rows = (shape[0] // group["blocks"], *shape[1:]) if shape else ()
        matrix = sum(size > 1 for size in rows) == 2
        return row_blocks(shape, tuple(matrix and size <= group["max_precond_dim"] for size in rows), group["blocks"])

    def _stored(self, piece: Piece, shape: Shape, group: Group) -> dict[str, Shape]:
        stored = super()._stored(piece, shape, group)
        if piece.factors and not group["using_klsoap"]:
            del stored["exp_avg_sq"]
        return stored | {f"root_{position}": (piece.core[at],) for at, position in piece.factors}

    def _step_stacks(
        self, group: Group, stacks: list[Stack], gradients: list[Tensor], send: Callable[[list[Tensor]], None]
    ) -> None:
        pairs = list(zip(stacks, gradients, strict=True))
        moving = [(stack, *_projections(stack, gradient)) for stack, gradient in pairs if stack.step]
        send([self._update(group, stack, projected) for stack, projected, _ in moving])
        for stack, projected, halves in moving:
            self._update_factors(group, stack, projected, halves)
        new = [(stack, gradient) for stack, gradient in pairs if not stack.step]
        for stack, gradient in new:
            self._start(group, stack, gradient)
        refresh_bases([stack for stack, _ in new], sorted_eigenvectors, self.incidents)
        refresh_bases(self._due(group, stacks), power_iteration, self.incidents)

    def _start(self, group: Group, stack: Stack, gradient: Tensor) -> None:
        """The factors of the first gradient, and the first eigenvalues."""
        beta = self._factor_beta(group)
        for at, position in stack.factors:
            stack.add_gram(at, position, gradient, beta, (1 - beta) * stack.core[at] / math.prod(stack.core))
            stack.tensors[f"root_{position}"].fill_(1 / math.sqrt(group["init_factor"]))

    def _update(self, group: Group, stack: Stack, projected: Tensor) -> Tensor:
        """The update (B, *core): Adam's, or the mean gradient whitened by both sides."""
        if group["using_klsoap"] or not stack.factors:
            (direction,) = adam_([stack], [projected], group["betas"], group["eps"])
        else:
            mean = stack.tensors["exp_avg"].lerp_(projected, 1 - group["betas"][0])
            scale = math.prod((_shaped(stack, at, stack.tensors[f"root_{p}"]) for at, p in stack.factors), start=1)
            direction = mean * (scale / (1 + scale * group["eps"]))
        return stack.project(direction, back=True)

    def _step_size(self, group: Group, stack: Stack) -> float:
        size, step, (beta1, beta2) = float(group["lr"]), stack.step or 0, group["betas"]
        return size if stack.factors else float(size * math.sqrt(1 - beta2**step) / (1 - beta1**step))

    def _update_factors(self, group: Group, stack: Stack, projected: Tensor, halves: dict[int, Tensor]) -> None:
        """Move the factors and the eigenvalues of each side, both whitened by the other side as it was."""
        beta, damping = self._factor_beta(group), group["eps"] if group["using_damping"] else 0.0
        old = {at: stack.tensors[f"root_{position}"] for at, position in stack.factors}
        inner = math.prod(stack.core)
        for at, position in stack.factors:
            white, full = halves[at], projected
            added = torch.full_like(old[at][:, :1], damping)
            if 1 - at in old:
                other = _shaped(stack, 1 - at, old[1 - at])
                white, full = white * other, projected * other
                added *= old[1 - at].square().mean(-1, keepdim=True)
            stack.add_gram(at, position, white, beta, (1 - beta) * stack.core[at] / inner)
            values = full.square().mean(2 - at) + added
            root = old[at].square().reciprocal_().nan_to_num_(0.0, 0.0, 0.0).lerp(values, 1 - beta)
            root = root.rsqrt_().nan_to_num_(0.0, 0.0, 0.0)
            if group["using_clamping"]:
                root.clamp_(max=max(LEAST_CLAMP, min(stack.core[at], group["max_clamp_value"])))
            stack.tensors[f"root_{position}"] = root
        stack.publish()


def _projections(stack: Stack, gradient: Tensor) -> tuple[Tensor, dict[int, Tensor]]:
    """The gradient in all bases, and for each side with a basis the gradient in the other side's basis."""
    bases = {at: stack.tensors[f"basis_{position}"] for at, position in stack.factors}
    inside = {at: along(gradient, basis, at) for at, basis in bases.items()}
    halves = {at: inside.get(1 - at, gradient) for at in bases}
    if not bases:
        return gradient, {}
    if len(bases) == 1:
        return next(iter(inside.values())), halves
    return along(inside[0], bases[1], 1), halves


def _shaped(stack: Stack, at: int, vector: Tensor) -> Tensor:
    """A (B, n) tensor of dimension ``at`` in a shape that multiplies (B, *core)."""
    return vector.view(len(stack), *(-1 if i == at else 1 for i in range(len(stack.core))))
