"""KL-Shampoo and KL-SOAP (Lin et al., arXiv 2509.03378), for stacks of matrices.

Shampoo's factors estimated by minimising a Kullback-Leibler divergence: each side's factor is the mean of gradients
whitened by the other side. The eigenvalues are estimated every step in the present basis. Takes the steps of
github.com/yorkerlin/KL-Methods in float32.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from dinoskip.optim.layout import Piece, as_matrix, row_blocks
from dinoskip.optim.linalg import Method
from dinoskip.optim.stacked import Group, StackedOptimizer
from dinoskip.optim.stacks import Stack, along

EIGH = Method(eigh=True, sort=True)
QR = Method(eigh=False, sort=False)
LEAST_CLAMP = 10  # of the authors: 1/sqrt(eigenvalue) may always reach this


class KLShampoo(StackedOptimizer):
    """KL-Shampoo, or KL-SOAP with ``using_klsoap`` (Adam in KL-Shampoo's basis), with stacked state.

    Kernels count as matrices (out, all else); a dimension larger than ``max_precond_dim`` has no basis; what is no
    matrix takes Adam's step with the same betas. The first gradient of a parameter only starts its state, there is
    no bias correction for matrices, and decay multiplies by 1 - lr * weight_decay after the update. ``init_factor``
    is the first eigenvalue of every factor; with ``using_clamping`` 1/sqrt(eigenvalue) is at most
    min(n, ``max_clamp_value``) for a side of n (never less than 10); ``using_damping`` adds ``eps`` in the estimates.
    All but the last three may also be set for a parameter group; ``blocks`` cuts by rows (3 for a fused qkv).
    """

    roots = True

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.98),
        shampoo_beta: float = -1,
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        precondition_frequency: int = 10,
        using_klsoap: bool = False,
        normalize_grads: bool = False,
        init_factor: float = 0.1,
        using_damping: bool = False,
        using_clamping: bool = True,
        max_clamp_value: float = 4000,
        *,
        max_precond_dim: int = 10000,
        blocks: int = 1,
    ) -> None:
        if init_factor <= 0:
            raise ValueError("init_factor must be positive")
        self.second_moment = using_klsoap
        self.using_damping, self.using_clamping = using_damping, using_clamping
        self.max_clamp_value, self.init_factor = max_clamp_value, init_factor
        defaults = {
            "lr": lr,
            "betas": betas,
            "shampoo_beta": shampoo_beta,
            "eps": eps,
            "weight_decay": weight_decay,
            "precondition_frequency": precondition_frequency,
            "normalize_grads": normalize_grads,
            "max_precond_dim": max_precond_dim,
            "blocks": blocks,
        }
        super().__init__(params, defaults)

    def _pieces(self, shape: tuple[int, ...], group: Group) -> list[Piece]:
        shape = as_matrix(shape)
        rows = (shape[0] // group["blocks"], *shape[1:]) if shape else ()
        matrix = sum(size > 1 for size in rows) == 2
        return row_blocks(shape, tuple(matrix and size <= group["max_precond_dim"] for size in rows), group["blocks"])

    def _step_group(self, group: Group, stacks: list[Stack], gradients: list[Tensor]) -> None:
        pairs = list(zip(stacks, gradients, strict=True))
        new = [(stack, gradient) for stack, gradient in pairs if stack.step is None]
        self._begin([stack for stack, _ in new])
        beta = self._factor_beta(group)
        old = [(stack, gradient) for stack, gradient in pairs if not any(stack is one for one, _ in new)]
        if old:
            self._update(group, [stack for stack, _ in old], [gradient for _, gradient in old], beta)
        for stack, gradient in new:
            self._start(stack, gradient, beta)
        self._renew([stack for stack, _ in new], EIGH)
        self._renew(self._due(group, [stack for stack, _ in old]), QR)

    def _start(self, stack: Stack, gradient: Tensor, beta: float) -> None:
        """The factors of the first gradient, and the first eigenvalues."""
        for at, position in stack.factors:
            stack.add_gram(at, position, gradient, beta, (1 - beta) * stack.core[at] / math.prod(stack.core))
            line = stack.tensors[f"factor_{position}"][..., 0]
            stack.tensors[f"root_{position}"] = torch.full_like(line, 1 / math.sqrt(self.init_factor))
        stack.publish(self.state, [f"root_{position}" for _, position in stack.factors])

    def _update(self, group: Group, stacks: list[Stack], gradients: list[Tensor], beta: float) -> None:
        parts = [self._rotated(stack, gradient) for stack, gradient in zip(stacks, gradients, strict=True)]
        rotated = [one for one, _ in parts]
        self._count(stacks)
        adam = [i for i, stack in enumerate(stacks) if self.second_moment or not stack.factors]
        directions: list[Tensor] = [torch.empty(0)] * len(stacks)
        if adam:
            means, squares = self._adam(group, [stacks[i] for i in adam], [rotated[i] for i in adam])
            below = torch._foreach_sqrt(squares)
            torch._foreach_add_(below, group["eps"])
            for i, direction in zip(adam, torch._foreach_div(means, below), strict=True):
                directions[i] = direction
        sizes = []
        for i, stack in enumerate(stacks):
            size = float(group["lr"])
            if not stack.factors:
                step, (beta1, beta2) = stack.step or 0, group["betas"]
                size *= math.sqrt(1 - beta2**step) / (1 - beta1**step)
            elif not self.second_moment:
                mean = stack.tensors["exp_avg"].lerp_(rotated[i], 1 - group["betas"][0])
                scale = math.prod((_shaped(stack, at, stack.tensors[f"root_{p}"]) for at, p in stack.factors), start=1)
                directions[i] = mean * (scale / (1 + scale * group["eps"]))
            sizes.append(size)
        updates = [stack.rotate(one, back=True) for stack, one in zip(stacks, directions, strict=True)]
        self._apply(group, stacks, updates, sizes, decay_first=False)
        for stack, (full, halves) in zip(stacks, parts, strict=True):
            if stack.factors:
                self._estimate(stack, full, halves, beta, group["eps"] if self.using_damping else 0.0)

    @staticmethod
    def _rotated(stack: Stack, gradient: Tensor) -> tuple[Tensor, dict[int, Tensor]]:
        """The gradient in all bases, and for each side with a basis the gradient in the other side's basis."""
        bases = {at: stack.tensors[f"basis_{position}"] for at, position in stack.factors}
        inside = {at: along(gradient, basis, at) for at, basis in bases.items()}
        halves = {at: inside.get(1 - at, gradient) for at in bases}
        if not bases:
            return gradient, {}
        if len(bases) == 1:
            return next(iter(inside.values())), halves
        return along(inside[0], bases[1], 1), halves

    def _estimate(self, stack: Stack, rotated: Tensor, halves: dict[int, Tensor], beta: float, damping: float) -> None:
        """Move the factors and the eigenvalues of each side, both whitened by the other side as it was."""
        old = {at: stack.tensors[f"root_{position}"] for at, position in stack.factors}
        inner = math.prod(stack.core)
        for at, position in stack.factors:
            white, full = halves[at], rotated
            added = torch.full_like(old[at][:, :1], damping)
            if 1 - at in old:
                other = _shaped(stack, 1 - at, old[1 - at])
                white, full = white * other, rotated * other
                added *= old[1 - at].square().mean(-1, keepdim=True)
            stack.add_gram(at, position, white, beta, (1 - beta) * stack.core[at] / inner)
            values = full.square().mean(2 - at) + added
            root = old[at].square().reciprocal_().nan_to_num_(0.0, 0.0, 0.0).lerp(values, 1 - beta)
            root = root.rsqrt_().nan_to_num_(0.0, 0.0, 0.0)
            if self.using_clamping:
                root.clamp_(max=max(LEAST_CLAMP, min(stack.core[at], self.max_clamp_value)))
            stack.tensors[f"root_{position}"] = root
        stack.publish(self.state, [f"root_{position}" for _, position in stack.factors])


def _shaped(stack: Stack, at: int, vector: Tensor) -> Tensor:
    """A (B, n) tensor of dimension ``at`` in a shape that multiplies (B, *core)."""
    return vector.view(len(stack), *(-1 if i == at else 1 for i in range(len(stack.core))))
