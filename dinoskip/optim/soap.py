"""SOAP: Adam in the eigenbasis of Shampoo's factors (Vyas et al., arXiv 2409.11321).

For a gradient G (m, n) with factors L, R (averages of G G^T and G^T G) and their eigenvectors Q_L, Q_R, a step is

    project      G' = Q_L^T G Q_R
    Adam         M' = beta1 M' + (1 - beta1) G',   V = beta2 V + (1 - beta2) G'^2,   N' = M' / (sqrt(V) + eps)
    project back W  = W - lr * sqrt(1 - beta2^t) / (1 - beta1^t) * Q_L N' Q_R^T, then decayed
    factors      L  = beta L + (1 - beta) G G^T,   R likewise
    refresh      every few steps: sort the columns of Q_L by the diagonal of Q_L^T L Q_L, then Q_L = QR(L Q_L).Q;
                 M' is expressed in the new basis, V permuted

and everything here is done for a stack (B, m, n) of matrices at once (:mod:`dinoskip.optim.batched`). The steps are
those of github.com/nikhilvyas/SOAP. ``variant="ecs"`` is eigenvalue-corrected Shampoo as in
facebookresearch/optimizers, which public code of the first author of *Cutting the Skip* runs under the name SOAP.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from dinoskip.optim.batched import Group, Piece, Shape, Stack, as_matrix, row_blocks
from dinoskip.optim.config import SoapConfig
from dinoskip.optim.preconditioned import Incidents, PreconditionedOptimizer
from dinoskip.runtime.console import log
from dinoskip.runtime.precision import exact_products

CHOLESKY_BYTES = 256 << 20  # of float64 matrices that one batch holds on a GPU, some four times over
CHOLESKY_SHIFTS = (1e-12, 0.0, 0.0)  # the first keeps the Gram matrix of nearly dependent columns positive definite

_DEFAULT = SoapConfig()


class SOAP(PreconditionedOptimizer):
    """SOAP with batched state; every argument may also be set for a parameter group.

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

    With ``stagger`` the shapes take turns in refreshing their bases, so that no step has them all. With ``tf32``
    gradients go into the bases and updates back in TF32 on a GPU; factors, bases and moments stay float32.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 3e-3,  # as weight_decay that of nikhilvyas/SOAP
        betas: tuple[float, float] = _DEFAULT.betas,
        shampoo_beta: float = _DEFAULT.shampoo_beta,
        eps: float = _DEFAULT.eps,
        weight_decay: float = 0.01,
        precondition_frequency: int = _DEFAULT.precondition_frequency,
        max_precond_dim: int = _DEFAULT.max_precond_dim,
        merge_dims: bool = _DEFAULT.merge_dims,
        precondition_1d: bool = _DEFAULT.precondition_1d,
        normalize_grads: bool = _DEFAULT.normalize_grads,
        correct_bias: bool = _DEFAULT.correct_bias,
        *,
        as_matrix: bool = False,
        blocks: int = 1,
        variant: Literal["soap", "ecs"] = "soap",
        stagger: bool = _DEFAULT.stagger,
        tf32: bool = _DEFAULT.tf32,
    ) -> None:
        # Every argument is a setting of a group.
        settings = {key: value for key, value in locals().items() if key not in ("self", "params", "__class__")}
        if variant not in ("soap", "ecs"):
            raise ValueError(f"variant: {variant!r} is none of soap, ecs")
        super().__init__(params, settings)

    # --- which matrices ----------------------------------------------------------------------------------

    def _pieces(self, shape: Shape, group: Group) -> list[Piece]:
        limit = group["max_precond_dim"]
        if group["variant"] == "ecs":
            return tiles(merge_from_right(shape, limit), limit)
        if len(shape) < 2:
            sided = tuple(group["precondition_1d"] and size <= limit for size in shape)
            return row_blocks(shape, sided, group["blocks"])
        if group["as_matrix"]:
            shape = as_matrix(shape)
        if group["merge_dims"]:
            shape = merge_from_left(shape, limit)
        rows = shape[0] // group["blocks"]
        return row_blocks(shape, tuple(size <= limit for size in (rows, *shape[1:])), group["blocks"])

    # --- a step --------------------------------------------------------------------------------------------

    def _step_stacks(
        self, group: Group, stacks: list[Stack], gradients: list[Tensor], send: Callable[[list[Tensor]], None]
    ) -> None:
        if group["variant"] == "ecs":
            self._update_factors(group, stacks, gradients)
            refresh_bases(self._due(group, stacks), eigenvectors, self.incidents)
            send(self._adam_in_the_eigenbasis(group, stacks, gradients))
            return
        started = [i for i, stack in enumerate(stacks) if stack.step]
        send(self._adam_in_the_eigenbasis(group, [stacks[i] for i in started], [gradients[i] for i in started]))
        self._update_factors(group, stacks, gradients)
        refresh_bases([stack for stack in stacks if not stack.step], sorted_eigenvectors, self.incidents)
        refresh_bases(self._due(group, stacks), sorted_power_iteration, self.incidents)

    @staticmethod
    def _adam_in_the_eigenbasis(group: Group, stacks: list[Stack], gradients: list[Tensor]) -> list[Tensor]:
        """The updates (B, *core), before their step size."""
        projected = [stack.project(gradient) for stack, gradient in zip(stacks, gradients, strict=True)]
        correct = group["variant"] == "ecs" and group["correct_bias"]
        directions = adam_(stacks, projected, group["betas"], group["eps"], correct=correct)
        return [stack.project(direction, back=True) for stack, direction in zip(stacks, directions, strict=True)]

    def _step_size(self, group: Group, stack: Stack) -> float:
        size, step = float(group["lr"]), stack.step or 0
        if not group["correct_bias"]:
            return size
        beta1, beta2 = group["betas"]
        if group["variant"] == "ecs":
            return float(size / (1 - beta1**step))
        return float(size * math.sqrt(1 - beta2**step) / (1 - beta1**step))

    def _update_factors(self, group: Group, stacks: list[Stack], gradients: list[Tensor]) -> None:
        """Move the factors towards the Gram matrices of the gradients, one a dimension."""
        beta = self._factor_beta(group)
        for stack, gradient in zip(stacks, gradients, strict=True):
            for at, position in stack.factors:
                stack.add_gram(at, position, gradient, beta, 1 - beta)

    def _moves_at_first(self, group: Group) -> bool:
        return bool(group["variant"] == "ecs")

    def _decays_first(self, group: Group) -> bool:
        return bool(group["variant"] == "ecs")


def adam_(
    stacks: list[Stack], gradients: list[Tensor], betas: tuple[float, float], eps: float, *, correct: bool = False
) -> list[Tensor]:
    """Move both moments towards the gradients (B, *core) and return their quotients.

    With ``correct`` the second moment's bias is corrected before ``eps`` is added to its root.
    """
    if not stacks:
        return []
    means = [stack.tensors["exp_avg"] for stack in stacks]
    squares = [stack.tensors["exp_avg_sq"] for stack in stacks]
    torch._foreach_lerp_(means, gradients, 1 - betas[0])
    torch._foreach_mul_(squares, betas[1])
    torch._foreach_addcmul_(squares, gradients, gradients, 1 - betas[1])
    roots = torch._foreach_sqrt(squares)
    if correct:
        torch._foreach_div_(roots, [math.sqrt(1 - betas[1] ** (stack.step or 0)) for stack in stacks])
    torch._foreach_add_(roots, eps)
    return list(torch._foreach_div(means, roots))


# --- refresh of the bases ------------------------------------------------------------------------------------

Solve = Callable[[Tensor, Tensor], tuple[Tensor, Tensor | None]]
"""From factors and old bases (B, n, n) to new bases and, if the old columns were reordered, their order (B, n)."""


def refresh_bases(stacks: list[Stack], solve: Solve, incidents: Incidents) -> None:
    """New bases for all dimensions of the stacks; exp_avg is expressed in them, exp_avg_sq permuted with them.

    No NaN gets in: a basis that came out non-finite, or that LAPACK gave up on, is computed again from its factor in
    float64 on the CPU; if that fails too (the factor itself holds NaN or infinity), the old basis stays. Both are
    logged and counted.
    """
    # The reference tries float64 once where eigh fails, and then raises in the middle of a step. A run of days goes on
    # with the basis that it has, and says so.
    solved = []
    for stack in stacks:
        for _, position in stack.factors:
            factors, old = stack.tensors[f"factor_{position}"], stack.tensors[f"basis_{position}"]
            with exact_products(factors.device):
                new, order = solve(factors, old)
            solved.append((new.contiguous(), order))
    if not solved:
        return
    norms: list[float] = torch.stack(torch._foreach_norm([new for new, _ in solved])).tolist()  # one read of the device
    finite = iter([norm < math.inf for norm in norms])
    remaining = iter(solved)
    for stack in stacks:
        bases, orders = {}, {}
        for at, position in stack.factors:
            new, order = next(remaining)
            if not next(finite):
                label = f"dimension {position} of {len(stack)} × {tuple(stack.core)}"
                factors, old = stack.tensors[f"factor_{position}"], stack.tensors[f"basis_{position}"]
                repair_(new, order, factors, old, solve, incidents, label)
            bases[f"basis_{position}"], orders[at] = new, order
        if stack.step:  # at the very start both moments are zero
            with exact_products(stack.tensors["exp_avg"].device):
                mean = stack.project(stack.tensors["exp_avg"], back=True)
                stack.tensors["exp_avg"] = stack.project(mean, bases=bases)
        for at, order in orders.items():
            if order is not None and "exp_avg_sq" in stack.tensors:
                square = stack.tensors["exp_avg_sq"]
                index = order.view(len(stack), *(-1 if i == at else 1 for i in range(len(stack.core))))
                stack.tensors["exp_avg_sq"] = square.gather(at + 1, index.expand_as(square))
        stack.tensors |= bases
        stack.publish()


def sorted_power_iteration(factors: Tensor, bases: Tensor) -> tuple[Tensor, Tensor]:
    """One orthogonal iteration: Q of the QR of F Q, the columns of Q first sorted by diag(Q^T F Q), largest first.

    These estimates of the eigenvalues are the column sums of Q * (F Q), so F Q is used twice.
    """
    power = torch.bmm(factors, bases)
    order = (bases * power).sum(-2).argsort(-1, descending=True)
    return orthonormal(power.gather(-1, order.unsqueeze(-2).expand_as(power))), order


def power_iteration(factors: Tensor, bases: Tensor) -> tuple[Tensor, None]:
    """One orthogonal iteration, the columns in the order in which they are."""
    return orthonormal(torch.bmm(factors, bases)), None


def eigenvectors(factors: Tensor, bases: Tensor) -> tuple[Tensor, None]:
    """Eigenvectors (columns), smallest eigenvalue first; NaN where LAPACK failed. The old bases are not used."""
    try:
        vectors: Tensor = torch.linalg.eigh(factors).eigenvectors
    except torch.linalg.LinAlgError:
        vectors = torch.full_like(factors, torch.nan)
        for out, factor in zip(vectors, factors, strict=True):
            with contextlib.suppress(torch.linalg.LinAlgError):
                out.copy_(torch.linalg.eigh(factor).eigenvectors)
    return vectors, None


def sorted_eigenvectors(factors: Tensor, bases: Tensor) -> tuple[Tensor, None]:
    """Eigenvectors (columns), largest eigenvalue first; NaN where LAPACK failed."""
    return eigenvectors(factors, bases)[0].flip(-1), None


def orthonormal(matrices: Tensor) -> Tensor:
    """Q of the QR of every matrix of (B, n, n): by LAPACK on the CPU, by :func:`cholesky_q` on CUDA.

    cuSOLVER's Householder QR takes matrices one by one, 1.5 times as long for the matrices of a ViT-S (29.6, 26.2, 69.0
    and 20.3 ms against 4.4, 15.8, 47.5 and 31.9 on an H100, docs/measured.md), and on side streams it gave other bits
    from call to call for matrices of low rank, which the class token's are in the first steps.
    """
    if not matrices.is_cuda:
        basis: Tensor = torch.linalg.qr(matrices).Q
        return basis
    size = max(1, CHOLESKY_BYTES // (8 * matrices.shape[-1] ** 2))
    return torch.cat([cholesky_q(part) for part in torch.split(matrices, size)])


def cholesky_q(matrices: Tensor) -> Tensor:
    """Q of the QR, with R's diagonal positive, of every matrix of (B, n, n); NaN where it is not found.

    Shifted Cholesky QR in three rounds (Fukaya et al., SIAM J. Sci. Comput. 42, 2020) in float64, on columns of unit
    length, which have the same Q: products and triangular solves of a whole batch. A column of zeros counts as
    that of the identity, as in LAPACK's Q of a matrix of zeros.
    """
    eye = torch.eye(matrices.shape[-1], dtype=torch.float64, device=matrices.device)
    lengths = torch.linalg.vector_norm(matrices, dim=-2, keepdim=True, dtype=torch.float64)
    basis = torch.where(lengths > 0, matrices / lengths, eye)
    for shift in CHOLESKY_SHIFTS:
        lower, failed = torch.linalg.cholesky_ex(basis.mT @ basis + shift * eye)
        basis = torch.linalg.solve_triangular(lower.mT, basis, upper=True, left=False)
        basis = torch.where((failed == 0)[:, None, None], basis, torch.nan)
    return basis.to(matrices.dtype)


def repair_(
    new: Tensor, order: Tensor | None, factors: Tensor, old: Tensor, solve: Solve, incidents: Incidents, label: str
) -> None:
    """Replace the non-finite bases of ``new`` (B, n, n) in place, from ``factors`` in float64 or else by ``old``.

    ``order`` (B, n) is corrected along; ``label`` names the stack in the log.
    """
    good = torch.isfinite(new).flatten(1).all(1).tolist()
    for at in [i for i, fine in enumerate(good) if not fine]:
        factor, basis = factors[at : at + 1].double().cpu(), old[at : at + 1].double().cpu()
        again, columns = torch.full_like(factor, torch.nan), None
        if bool(torch.isfinite(factor).all()):
            again, columns = solve(factor, basis)
        if bool(torch.isfinite(again).all()):
            incidents.retried += 1
            log.warning("%s, matrix %d: basis computed again in float64 (%d so far)", label, at, incidents.retried)
            new[at] = again[0].to(new)
        else:
            incidents.kept += 1
            log.warning("%s, matrix %d: non-finite, the old basis stays (%d so far)", label, at, incidents.kept)
            new[at] = old[at]
            columns = torch.arange(new.shape[-1])[None]
        if order is not None and columns is not None:
            order[at] = columns[0].to(order)


# --- shapes --------------------------------------------------------------------------------------------------


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
