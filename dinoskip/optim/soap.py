"""SOAP: Adam in the eigenbasis of Shampoo's factors (Vyas et al., arXiv 2409.11321), for stacks of matrices.

``variant="soap"`` takes the steps of github.com/nikhilvyas/SOAP. ``variant="ecs"`` is eigenvalue-corrected Shampoo as
in facebookresearch/optimizers, which public code of the first author of *Cutting the Skip* runs under the name SOAP.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor

from dinoskip.optim.layout import Piece, as_matrix, merge_from_left, merge_from_right, row_blocks, tiles
from dinoskip.optim.linalg import Method
from dinoskip.optim.stacked import Group, StackedOptimizer
from dinoskip.optim.stacks import Stack

EIGH = Method(eigh=True, sort=True)
SORTED_QR = Method(eigh=False, sort=True)
ASCENDING_EIGH = Method(eigh=True, sort=False)


class SOAP(StackedOptimizer):
    """SOAP with stacked state; every argument may also be set for a parameter group.

    Variant ``soap``: the first gradient of a parameter only starts its factors and bases and changes nothing else;
    the basis of a step never holds that step's gradient; ``eps`` is added to the root of the second moment before
    the bias correction; decay multiplies by 1 - lr * weight_decay after the update. The factors are averaged with
    ``shampoo_beta`` (negative: betas[1]). Every ``precondition_frequency`` steps of a parameter the bases take one
    orthogonal iteration. A dimension larger than ``max_precond_dim`` has no basis, nor have tensors of one
    dimension unless ``precondition_1d``. ``merge_dims`` merges neighbouring dimensions up to ``max_precond_dim``;
    ``as_matrix`` takes kernels as (out, all else); ``blocks`` cuts a parameter into that many matrices by rows (3
    for a fused qkv). ``normalize_grads`` scales each update to a mean square of 1.

    Variant ``ecs``: the factors hold the step's gradient, bases are eigenvectors from step ``precondition_frequency``
    on and the identity before, every dimension has a basis (of blocks of at most ``max_precond_dim``, after merging
    what fits in that from the right), ``eps`` comes after the bias correction and decay before the update. It has
    no use for ``merge_dims``, ``precondition_1d``, ``as_matrix`` and ``blocks``.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 3e-3,
        betas: tuple[float, float] = (0.95, 0.95),
        shampoo_beta: float = -1,
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        precondition_frequency: int = 10,
        max_precond_dim: int = 10000,
        merge_dims: bool = False,
        precondition_1d: bool = False,
        normalize_grads: bool = False,
        correct_bias: bool = True,
        *,
        as_matrix: bool = False,
        blocks: int = 1,
        variant: Literal["soap", "ecs"] = "soap",
    ) -> None:
        if variant not in ("soap", "ecs"):
            raise ValueError(f"variant: {variant!r} is none of soap, ecs")
        self.variant = variant
        defaults = {
            "lr": lr,
            "betas": betas,
            "shampoo_beta": shampoo_beta,
            "eps": eps,
            "weight_decay": weight_decay,
            "precondition_frequency": precondition_frequency,
            "max_precond_dim": max_precond_dim,
            "merge_dims": merge_dims,
            "precondition_1d": precondition_1d,
            "normalize_grads": normalize_grads,
            "correct_bias": correct_bias,
            "as_matrix": as_matrix,
            "blocks": blocks,
        }
        super().__init__(params, defaults)

    def _pieces(self, shape: tuple[int, ...], group: Group) -> list[Piece]:
        limit = group["max_precond_dim"]
        if self.variant == "ecs":
            return tiles(merge_from_right(shape, limit), limit)
        if len(shape) < 2:
            return row_blocks(
                shape, tuple(group["precondition_1d"] and size <= limit for size in shape), group["blocks"]
            )
        if group["as_matrix"]:
            shape = as_matrix(shape)
        if group["merge_dims"]:
            shape = merge_from_left(shape, limit)
        rows = shape[0] // group["blocks"]
        return row_blocks(shape, tuple(size <= limit for size in (rows, *shape[1:])), group["blocks"])

    def _step_group(self, group: Group, stacks: list[Stack], gradients: list[Tensor]) -> None:
        new = [stack for stack in stacks if stack.step is None]
        self._begin(new)
        if self.variant == "ecs":
            self._learn(group, stacks, gradients)
            self._count(stacks)
            self._renew(self._due(group, stacks), ASCENDING_EIGH)
            self._update_ecs(group, stacks, gradients)
            return
        old = [(stack, gradient) for stack, gradient in zip(stacks, gradients, strict=True) if stack not in new]
        if old:
            self._update(group, [stack for stack, _ in old], [gradient for _, gradient in old])
        self._learn(group, stacks, gradients)
        self._renew(new, EIGH)
        self._renew(self._due(group, [stack for stack, _ in old]), SORTED_QR)

    def _learn(self, group: Group, stacks: list[Stack], gradients: list[Tensor]) -> None:
        for stack, gradient in zip(stacks, gradients, strict=True):
            stack.learn(gradient, self._factor_beta(group))

    def _update(self, group: Group, stacks: list[Stack], gradients: list[Tensor]) -> None:
        rotated = [stack.rotate(gradient) for stack, gradient in zip(stacks, gradients, strict=True)]
        means, squares = self._adam(group, stacks, rotated)
        self._count(stacks)
        below = torch._foreach_sqrt(squares)
        torch._foreach_add_(below, group["eps"])
        directions = torch._foreach_div(means, below)
        updates = [stack.rotate(one, back=True) for stack, one in zip(stacks, directions, strict=True)]
        sizes = [float(group["lr"])] * len(stacks)
        if group["correct_bias"]:
            beta1, beta2 = group["betas"]
            steps = [stack.step or 0 for stack in stacks]
            sizes = [
                size * math.sqrt(1 - beta2**step) / (1 - beta1**step) for size, step in zip(sizes, steps, strict=True)
            ]
        self._apply(group, stacks, updates, sizes, decay_first=False)

    def _update_ecs(self, group: Group, stacks: list[Stack], gradients: list[Tensor]) -> None:
        rotated = [stack.rotate(gradient) for stack, gradient in zip(stacks, gradients, strict=True)]
        means, squares = self._adam(group, stacks, rotated)
        beta1, beta2 = group["betas"] if group["correct_bias"] else (0.0, 0.0)
        steps = [stack.step or 0 for stack in stacks]
        below = torch._foreach_sqrt(squares)
        torch._foreach_div_(below, [math.sqrt(1 - beta2**step) for step in steps])
        torch._foreach_add_(below, group["eps"])
        directions = torch._foreach_div(means, below)
        updates = [stack.rotate(one, back=True) for stack, one in zip(stacks, directions, strict=True)]
        sizes = [float(group["lr"]) / (1 - beta1**step) for step in steps]
        self._apply(group, stacks, updates, sizes, decay_first=True)
