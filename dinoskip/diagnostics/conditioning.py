"""Condition numbers of the query, key and value matrices of attention."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dinoskip.errors import ConfigError
from dinoskip.models.attention_sites import head_factors, is_plain_attention
from dinoskip.models.rank_collapse import Conditioning, condition_number


def vo_condition(block: nn.Module) -> Conditioning:
    """Condition number of W^V W^O, the full D × D product over all heads (Cutting the Skip, sec. 5.1).

    Of a timm block, or an attention of any network, as all functions here.
    Products of single heads would hide independent draws per head, whose sum is badly conditioned. Raises
    :class:`ConfigError` when the block's attention is not plain.
    """
    _, _, value, output = _factors(block, "vo_condition")
    return condition_number(value @ output)


def _factors(block: nn.Module, caller: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    attention = getattr(block, "attn", block)
    if not is_plain_attention(attention, softmax=False):
        raise ConfigError(f"{caller}: {type(attention).__name__} is not plain attention")
    return head_factors(attention)


@torch.no_grad()
def query_key_spectrum(block: nn.Module) -> Tensor:
    """Singular values (heads, dh) of each head's W^Q W^Kᵀ, float64, from thin QR factors: no D × D product."""
    query, key, _, _ = _factors(block, "query_key_spectrum")
    triangles = [torch.linalg.qr(factor).R for factor in (query, key)]
    values: Tensor = torch.linalg.svdvals(triangles[0] @ triangles[1].mT)
    return values


@torch.no_grad()
def query_key_trace(block: nn.Module) -> Tensor:
    """tr(W^Q W^Kᵀ) (heads,), float64: √dh times the mean logit of a LayerNormed token with itself."""
    query, key, _, _ = _factors(block, "query_key_trace")
    return (query * key).sum((-2, -1))


@torch.no_grad()
def drift(weight: Tensor) -> float:
    """‖W Wᵀ/g² - I‖₂ over the shorter side, g² the mean squared singular value: 0 for a scaled semi-orthogonal matrix.

    What spectral and sign updates do to it is the subject of Lemmas 8 and 10 of paper 4. ``weight`` is (m, n).
    """
    w = weight.detach().double()
    gram = w @ w.T if w.shape[0] <= w.shape[1] else w.T @ w
    values = torch.linalg.eigvalsh(gram)
    return float((values / values.mean() - 1).abs().max())
