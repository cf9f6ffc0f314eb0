"""Conditioning of attention's derivatives: by its input (K of paper 0, eq. 8) and by its weights (paper 3, Thm. 3.1).

Small Jacobians are formed, larger ones only multiplied: Golub-Kahan-Lanczos on forward and backward products. K is
taken with respect to norm1's *output*: a Jacobian that includes the norm is singular by construction.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from timm.layers import Attention
from torch import Tensor

from dinoskip.models.attention_sites import head_factors
from dinoskip.runtime.randomness import torch_rng

EXACT = 1536
"""Up to this many inputs (tokens × width) a Jacobian is formed."""
NONZERO = 1e-10
"""Singular values below this share of the largest count as zero."""
LIMIT = 1 / torch.finfo(torch.float64).eps
"""Value at which κ is clipped: beyond it is rounding noise."""
Linear = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Extremes:
    """Largest and smallest singular value of a linear map, and what is known of their error."""

    largest: float
    largest_error: float
    """A singular value lies within this of ``largest``, which is never above the true one. 0 if exact."""
    smallest: float
    """The smallest, or an upper bound of it (the smallest Ritz value)."""
    exact: bool

    @property
    def kappa(self) -> float:
        """Condition number, at most 4.5e15; a lower bound of it unless ``exact``."""
        return LIMIT if self.rank_deficient else self.largest / self.smallest

    @property
    def rank_deficient(self) -> bool:
        """Whether κ met that limit."""
        return self.largest >= self.smallest * LIMIT


def lanczos_extremes(product: Linear, transposed: Linear, start: Tensor, steps: int) -> Extremes:
    """Extreme singular values of J from ``product`` (v ↦ J v) and ``transposed`` (u ↦ Jᵀ u), float64.

    Golub-Kahan bidiagonalisation with full reorthogonalisation from ``start`` (of the input's shape), at most
    ``steps`` products of each kind. J needs at least as many rows as columns for ``smallest`` to be meant as such.
    """
    v = start.flatten() / start.norm()
    rights, lefts = v[:, None], v.new_zeros(0, 0)
    alphas: list[Tensor] = []
    betas: list[Tensor] = []
    for _ in range(min(steps, v.numel())):
        u = product(rights[:, -1].view_as(start)).flatten()
        if lefts.numel():
            u = u - lefts @ (lefts.T @ u)
            u = u - lefts @ (lefts.T @ u)
        alpha = u.norm()
        # A direction shorter than some roundings of float64 (2e-16) of the largest is noise: the space is closed.
        if len(alphas) and alpha <= alphas[0] * 1e-14:
            alphas.append(alpha * 0)
            betas.append(alpha * 0)
            break
        u = u / alpha
        lefts = torch.cat([lefts, u[:, None]], 1) if lefts.numel() else u[:, None]
        w = transposed(u).flatten()
        w = w - rights @ (rights.T @ w)
        w = w - rights @ (rights.T @ w)
        beta = w.norm()
        alphas.append(alpha)
        betas.append(beta)
        if beta <= alphas[0] * 1e-14:
            break
        rights = torch.cat([rights, (w / beta)[:, None]], 1)
    bidiagonal = torch.diag(torch.stack(alphas)) + torch.diag(torch.stack(betas)[:-1], 1)
    left, values, _ = torch.linalg.svd(bidiagonal)
    complete = bool(betas[-1] <= alphas[0] * 1e-14) and len(alphas) == v.numel()
    return Extremes(float(values[0]), float(betas[-1] * left[-1, 0].abs()), float(values[-1]), complete)


@torch.no_grad()
def input_jacobian(
    attention: Attention, normed: Tensor, *, skip: bool = False, steps: int = 40, exact_up_to: int = EXACT
) -> Extremes:
    """Extreme singular values of K = ∂ attention(x) / ∂x at norm1's output ``normed`` (n, C); of K + I with ``skip``.

    Exact for n·C up to ``exact_up_to``; above, ``steps`` Lanczos steps, each one forward and one backward product:
    the largest singular value with an error that is stated, the smallest as an upper bound, κ as a lower bound.
    """
    module = copy.deepcopy(attention).double().eval()
    setattr(module, "fused_attn", False)  # noqa: B010 - timm declares it final; forward derivatives exist for the explicit product alone
    x = normed.detach().double()

    def function(tokens: Tensor) -> Tensor:
        output: Tensor = module(tokens[None])[0]
        return output + tokens if skip else output

    if x.numel() <= exact_up_to:
        size = x.numel()
        values = torch.linalg.svdvals(torch.func.jacrev(function)(x).reshape(size, size))
        return Extremes(float(values[0]), 0.0, float(values[-1]), True)
    with torch.enable_grad():
        output, backward = torch.func.vjp(function, x)[:2]
    start = torch.randn(x.shape, dtype=x.dtype, generator=torch_rng(0, "lanczos")).to(x.device)
    return lanczos_extremes(
        lambda v: torch.func.jvp(function, (x,), (v,))[1].detach(),
        lambda u: backward(u.view_as(output))[0].detach(),
        start,
        steps,
    )


@dataclass(frozen=True)
class WeightJacobian:
    """κ of one head's attention by its weights, beside two bounds; all cut at 4.5e15."""

    kappa: float
    bound: float
    """Theorem 3.1's, of nonzero singular values of Λ; it can fail, see :func:`weight_jacobian`."""
    ceiling: float
    """Upper limit of κ, never exceeded."""


@torch.no_grad()
def weight_jacobian(attention: Attention, tokens: Tensor, head: int = 0) -> WeightJacobian:
    """κ of J = ∂A(X) / ∂(W_Q, W_K, W_V) for one head at ``tokens`` (n, C), n ≤ C; milliseconds at 12, growing as n⁶.

    A(X) = softmax(X W_Q W_Kᵀ Xᵀ) X W_V as in paper 3: no biases, the scale 1/√dh shared out evenly over W_Q and W_K.
    J is exact but never formed at full width: rotating the channels of X, Q, K and V into the n that they use leaves
    its singular values alone, and where the values use fewer than dh channels, the others have those of softmax · X.

    ``bound``: κ(X)³ κ(Λ) κ(W_V) (κ(W_Q) + κ(W_K)) + κ(X) κ(softmax), Λ without its zero a row. It adds the condition
    numbers of J's three blocks, which is right for blocks of full row rank only; those of W_Q and W_K never are, as Λ
    is singular. So it may fail where they are larger than that of W_V: they grow with W_V, and the bound does not.
    ``ceiling``: κ(X) κ(softmax) + ‖X‖³ ‖Λ‖ ‖W_V‖ (‖W_Q‖ + ‖W_K‖) / (s_min(X) s_min(softmax)). It always holds: the
    block of W_V, I ⊗ softmax·X, has full row rank, so that J's smallest singular value is at least its own.
    """
    return jacobian_of(tokens.cpu(), *(matrix.cpu() for matrix in scaled_factors(attention, head)))


@torch.no_grad()
def scaled_factors(attention: Attention, head: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """W_Q, W_K and W_V of a head, float64 (C, dh), where the weights lie; the scale 1/√dh is in the first two."""
    query, key, value, _ = head_factors(attention)
    width = query.shape[-1]
    root = float(attention.scale) ** 0.5
    return query[head] * root, key[head] * root, value[:, head * width : (head + 1) * width]


@torch.no_grad()
def jacobian_of(tokens: Tensor, *factors: Tensor) -> WeightJacobian:
    """:func:`weight_jacobian` of tokens (n, C) and :func:`scaled_factors`, on the host: small, no work for a GPU."""
    x, *weights = (matrix.detach().double() for matrix in (tokens, *factors))
    if len(x) > x.shape[1]:
        raise ValueError(f"weight_jacobian: {len(x)} tokens are more than their {x.shape[1]} channels")
    softmax, spread = _softmax(x, weights)
    values = _singular_values(x, weights, softmax, spread)
    curvature = torch.linalg.eigvalsh(spread)[:, 1:]  # the smallest of each row is its zero
    nonzero = curvature[curvature >= curvature.max() * NONZERO].clamp_min(torch.finfo(torch.float64).tiny)
    kappa_x, kappa_softmax, *kappas = (_kappa(torch.linalg.svdvals(matrix)) for matrix in (x, softmax, *weights))
    bound = kappa_x**3 * _kappa(nonzero) * kappas[2] * (kappas[0] + kappas[1]) + kappa_x * kappa_softmax
    norms = [float(torch.linalg.matrix_norm(matrix, 2)) for matrix in (x, *weights)]
    by_both = float(curvature.max()) * norms[0] ** 2 * norms[3] * (norms[1] + norms[2])  # over ‖X‖, as s_min below
    smallest = float(torch.linalg.svdvals(softmax)[-1]) / kappa_x
    ceiling = kappa_x * kappa_softmax + by_both / max(smallest, 1 / LIMIT)
    return WeightJacobian(_kappa(values), min(bound, LIMIT), min(ceiling, LIMIT))


@torch.no_grad()
def weight_spectrum(attention: Attention, tokens: Tensor) -> Tensor:
    """All singular values (n·C,) of ∂[A_1(X), ..., A_h(X)] / ∂(W_Q, W_K, W_V) at ``tokens`` (n, C), falling, float64.

    Heads have weights of their own, so these are the singular values of every head's :func:`weight_jacobian` together.
    """
    x = tokens.detach().cpu().double()
    parts = []
    for head in range(attention.num_heads):
        weights = [matrix.detach().cpu() for matrix in scaled_factors(attention, head)]
        parts.append(_singular_values(x, weights, *_softmax(x, weights)))
    values: Tensor = torch.cat(parts).sort(descending=True).values
    return values


def _softmax(x: Tensor, weights: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Attention (n, n) and its derivative by the logits (n, n, n), a matrix a row."""
    softmax = (x @ weights[0] @ (x @ weights[1]).T).softmax(-1)
    return softmax, torch.diag_embed(softmax) - softmax[:, :, None] * softmax[:, None, :]


def _singular_values(x: Tensor, weights: Sequence[Tensor], softmax: Tensor, spread: Tensor) -> Tensor:
    """The n·dh singular values of one head's Jacobian by its weights, at what :func:`_softmax` gives."""
    left, q, k, v = (_triangle(matrix) for matrix in (x, *(x @ weight for weight in weights)))
    mixed = torch.einsum("jc,ijk->ick", v, spread)  # (n, channels, n): d out_i / d logits_i
    rows = len(x) * v.shape[1]
    by_query = torch.einsum("ia,icb->icab", left, mixed @ k).reshape(rows, -1)
    by_key = torch.einsum("ib,ica->icab", q, mixed @ left).reshape(rows, -1)
    by_value = torch.einsum("cb,ia->icab", torch.eye(v.shape[1], dtype=torch.float64), softmax @ left).reshape(rows, -1)
    values: Tensor = torch.linalg.svdvals(torch.cat([by_query, by_key, by_value], 1))
    unused = weights[2].shape[1] - v.shape[1]  # channels of the head
    if unused:
        values = torch.cat([values, torch.linalg.svdvals(softmax @ left).repeat(unused)])
    return values


def _kappa(values: Tensor) -> float:
    """Largest over smallest of singular values, cut."""
    largest, smallest = float(values.max()), float(values.min())
    return LIMIT if largest >= smallest * LIMIT else largest / smallest


def evenly(tokens: Tensor, count: int) -> Tensor:
    """Return at most ``count`` of ``tokens`` (n, C), evenly spaced from first to last; never more than C."""
    where = torch.linspace(0, len(tokens) - 1, min(count, *tokens.shape)).round().long()
    return tokens[where.to(tokens.device, non_blocking=True)]


def _triangle(matrix: Tensor) -> Tensor:
    """``matrix`` (n, C) times an orthogonal one, without the channels that are then zero: (n, min(n, C))."""
    triangle: Tensor = torch.linalg.qr(matrix.T, mode="r").R
    return triangle.T
