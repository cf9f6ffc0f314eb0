"""Measures of token sets: conditioning, stable rank, RankMe and norm outliers.

Cosine and effective rank are in ``dinoskip.models.rank_collapse``. Singular values are of
float64 matrices, never square roots of a float32 Gram matrix's.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dinoskip.models.rank_collapse import condition_number

OUTLIER = 3.0
"""A token is an outlier from this many times the median norm of its image on."""


@dataclass(frozen=True)
class LogCondition:
    """ln κ of several matrices: its mean (a mean of κ itself is one draw's), and whether any is rank deficient."""

    log_mean: float
    median: float
    """Median of κ."""
    rank_deficient: bool


@torch.no_grad()
def log_condition(matrices: Tensor) -> LogCondition:
    """Summary of κ of matrices (..., m, n). κ is cut at 1/eps = 4.5e15."""
    condition = condition_number(matrices)
    kappa = condition.kappa.flatten()
    return LogCondition(float(kappa.log().mean()), float(kappa.quantile(0.5)), bool(condition.rank_deficient.any()))


@torch.no_grad()
def stable_rank(x: Tensor) -> float:
    """‖X‖_F² / ‖X‖₂² of each image's tokens (B, n, C), mean over images; between 1 and the rank."""
    values = torch.linalg.svdvals(x.double())
    squares = values.square()
    return float((squares.sum(-1) / squares[..., 0].clamp_min(torch.finfo(torch.float64).tiny)).mean())


@torch.no_grad()
def rankme(x: Tensor) -> float:
    """Effective rank of embeddings (N, C) taken together (Garrido et al. 2023, RankMe, eq. 1), eps 1e-7.

    exp of the entropy of the singular values' shares, at most min(N, C). Here of the tokens of all images.
    """
    if x.ndim != 2 or min(x.shape) < 2:
        raise ValueError(f"rankme: embeddings must be (N, C) with at least 2 of each, got {tuple(x.shape)}")
    values = torch.linalg.svdvals(x.double())
    share = values / values.sum().clamp_min(torch.finfo(torch.float64).tiny) + 1e-7  # RankMe, equation 1
    return float((-(share * share.log()).sum()).exp())


@torch.no_grad()
def norm_outliers(x: Tensor) -> tuple[float, float]:
    """Largest over median token norm, and the share of tokens above 3 × the median, of (B, n, C), mean over images.

    High-norm tokens in uniform patches are a known trait of large ViTs (Darcet et al. 2024).
    """
    norms = x.double().norm(dim=-1)
    median = norms.quantile(0.5, dim=-1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
    ratio = norms / median
    return float(ratio.amax(-1).mean()), float((ratio > OUTLIER).double().mean())
