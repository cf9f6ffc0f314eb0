"""Measures of matrices and token sets, in float64: condition number, token cosine, effective rank."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Conditioning:
    """``kappa`` = largest over smallest singular value, at most 1/eps, and where that limit was met."""

    kappa: Tensor
    rank_deficient: Tensor


@torch.no_grad()
def condition_number(matrix: Tensor) -> Conditioning:
    """Condition number of a matrix (m, n) or of a batch (..., m, n), from float64 singular values.

    ``kappa`` is float64 and ``rank_deficient`` bool, both of the batch's shape. A ratio above 1/eps = 4.5e15 is
    rounding noise: it is cut there and flagged (a zero matrix included).
    """
    values = torch.linalg.svdvals(matrix.double())
    largest, smallest = values[..., 0], values[..., -1]
    limit = 1.0 / torch.finfo(torch.float64).eps
    deficient = largest >= smallest * limit
    kappa = torch.where(deficient, limit, largest / smallest.clamp_min(torch.finfo(torch.float64).tiny))
    return Conditioning(kappa, deficient)


@torch.no_grad()
def token_cosine(x: Tensor) -> float:
    """Mean cosine over all pairs of different tokens of an image, averaged over images; ``x`` is (B, n, D), n ≥ 2.

    1 means that all tokens point the same way. Linear in n: (‖Σ x̂_i‖² - n) / (n (n - 1)) with unit tokens x̂.
    """
    return float(token_cosine_on_device(x))


@torch.no_grad()
def token_cosine_on_device(x: Tensor) -> Tensor:
    """:func:`token_cosine` as a float64 scalar where ``x`` lies: nothing waits for a GPU."""
    _check_tokens(x)
    unit = F.normalize(x.double(), dim=-1)
    n = x.shape[1]
    return ((unit.sum(1).square().sum(-1) - n) / (n * (n - 1))).mean()


@torch.no_grad()
def effective_rank(x: Tensor) -> float:
    """exp of the entropy of the normalised singular values of each image's tokens, averaged over images.

    ``x`` is (B, n, D), not centred; between 1 (all tokens parallel) and min(n, D). Roy and Vetterli, 2007.
    """
    _check_tokens(x)
    values = torch.linalg.svdvals(x.double())
    share = values / values.sum(-1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
    return float(torch.special.entr(share).sum(-1).exp().mean())


def _check_tokens(x: Tensor) -> None:
    if x.ndim != 3 or x.shape[1] < 2:
        raise ValueError(f"tokens must be (B, n, D) with n of at least 2, got {tuple(x.shape)}")
