"""Conditioning of attention's derivatives: by its input (K of paper 0, eq. 8) and by its weights (paper 3, Thm. 3.1).

Small Jacobians are formed, larger ones only multiplied: Golub-Kahan-Lanczos on forward and backward products. K is
taken with respect to norm1's *output*: a Jacobian that includes the norm is singular by construction.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from timm.layers import Attention
from torch import Tensor

from dinoskip.measures import condition_number
from dinoskip.models.vit import head_factors
from dinoskip.randomness import torch_rng

EXACT = 1536
"""Up to this many inputs (tokens × width) a Jacobian is formed."""
NONZERO = 1e-10
"""Singular values below this share of the largest count as zero."""
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
        limit = 1 / torch.finfo(torch.float64).eps
        return limit if self.largest >= self.smallest * limit else self.largest / self.smallest

    @property
    def rank_deficient(self) -> bool:
        """Whether κ met that limit."""
        return self.largest >= self.smallest / torch.finfo(torch.float64).eps


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
    """κ of one head's attention by its weights, beside the bound of Theorem 3.1, both of nonzero singular values."""

    kappa: float
    bound: float


def nonzero_kappa(values: Tensor) -> float:
    """Largest over smallest of the singular values that are not rounding noise (1e-10 of the largest)."""
    kept = values[values > values.max() * NONZERO]
    return float(kept.max() / kept.min()) if len(kept) else math.inf


@torch.no_grad()
def weight_jacobian(attention: Attention, tokens: Tensor, head: int = 0) -> WeightJacobian:
    """κ of J = ∂A(X) / ∂(W_Q, W_K, W_V) for one head at ``tokens`` (n, C), n small (the cost is (n·dh)³).

    A(X) = softmax(X W_Q W_Kᵀ Xᵀ) X W_V as in paper 3: no biases, the scale 1/√dh shared out evenly over W_Q and W_K.
    J is exact but never formed at full width: with X = L Qᵀ its singular values are those of L's, n columns a weight.
    Bound: κ(X)³ κ(Λ) κ(W_V) (κ(W_Q) + κ(W_K)) + κ(X) κ(softmax). Λ is always singular, of nullity one a row, which is
    left out; the bound is loose.
    """
    query, key, value, _ = head_factors(attention)
    width = query.shape[-1]
    root = float(attention.scale) ** 0.5
    weights = (query[head] * root, key[head] * root, value[:, head * width : (head + 1) * width])
    x = tokens.detach().double()
    triangle = torch.linalg.qr(x.T, mode="r").R
    left = triangle.T  # (n, r): x = left times orthonormal rows
    q, k, v = (x @ weight for weight in weights)
    softmax = (q @ k.T).softmax(-1)
    spread = torch.diag_embed(softmax) - softmax[:, :, None] * softmax[:, None, :]  # (n, n, n), one a row
    mixed = torch.einsum("jc,ijk->ick", v, spread)  # (n, dh, n): d out_i / d logits_i
    shape = (x.shape[0] * width, left.shape[1] * width)
    by_query = torch.einsum("ia,icb->icab", left, mixed @ k).reshape(shape)
    by_key = torch.einsum("ib,ica->icab", q, mixed @ left).reshape(shape)
    by_value = torch.einsum("cb,ia->icab", torch.eye(width).to(x), softmax @ left).reshape(shape)
    measured = nonzero_kappa(torch.linalg.svdvals(torch.cat([by_query, by_key, by_value], 1)))
    own = nonzero_kappa(torch.linalg.svdvals(x))
    conditions = [nonzero_kappa(torch.linalg.svdvals(weight)) for weight in weights]
    curvature = torch.linalg.eigvalsh(spread)[:, 1:]  # the smallest of each row is its zero
    bound = own**3 * nonzero_kappa(curvature.clamp_min(0).flatten()) * conditions[2] * (conditions[0] + conditions[1])
    return WeightJacobian(measured, bound + own * nonzero_kappa(torch.linalg.svdvals(softmax)))


@torch.no_grad()
def dominant_kappa(attention: Tensor) -> float:
    """κ of B = Σ_i (W^V_i W^O_i)ᵀ ⊗ A_i for the scaled orthogonal W^V, W^O: max s_max(A_i) / min s_min(A_i), exactly.

    ``attention`` (heads, n, n); cut at 4.5e15. An n·C × n·C matrix's condition number for the price of n × n ones.
    """
    values = torch.linalg.svdvals(attention.double())
    return float(condition_number(torch.diag(torch.stack([values[:, 0].max(), values[:, -1].min()]))).kappa)
