"""What the weights of each block look like: conditioning, attention logits, MLP gains, and what they do to images."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from timm.models.vision_transformer import Block as TimmBlock
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from dinoskip.errors import ConfigError
from dinoskip.models.attention_factors import head_factors, is_plain_attention
from dinoskip.models.vit import embed
from dinoskip.rank_collapse import condition_number, effective_rank, token_cosine


@dataclass(frozen=True)
class BlockReport:
    """One block. Row convention: logits are ``x W^Q_i (x W^K_i)ᵀ / √dh``; all numbers in float64."""

    block: int
    """1..depth."""
    kappa_vo: float
    """Condition number of W^V W^O, at most 4.5e15."""
    vo_min: float
    """Smallest singular value of W^V W^O."""
    vo_max: float
    """Largest singular value of W^V W^O."""
    logit_diagonal: float
    """Mean logit of a LayerNormed token with itself: tr(W^Q W^Kᵀ)/√dh, mean over heads."""
    logit_spread: float
    """Standard deviation of the logits of unrelated tokens: ‖W^Q W^Kᵀ‖_F/√dh, mean over heads."""
    kappa_q: float
    """Condition number of W^Q_i, median over heads."""
    fc1_gain: float
    """Root mean square of fc1's singular values; 2 for the scaled uniform orthogonal one."""
    fc2_gain: float
    """Root mean square of fc2's singular values; 1 for the scaled uniform orthogonal one."""
    token_cosine: float | None = None
    """Mean cosine between different tokens after norm1, on the images given."""
    effective_rank: float | None = None
    """Effective rank of the tokens after norm1, on the images given."""


@torch.no_grad()
def report(model: VisionTransformer, images: Tensor | None = None) -> list[BlockReport]:
    """Describe every block's weights; with ``images`` (B, 3, H, W), normalised, also its LayerNormed input tokens.

    The tokens are computed with the model as it is (its dtype, device and mode). Raises :class:`ConfigError` for
    models whose attention is not plain, where these numbers would not mean what they say.
    """
    if not isinstance(model, VisionTransformer):
        raise ConfigError(f"report: a {type(model).__name__} is not supported", "use a timm VisionTransformer")
    parameter = next(model.parameters())
    tokens = None if images is None else embed(model, images.to(parameter.device, parameter.dtype))
    rows = []
    for number, block in enumerate(model.blocks, 1):
        if not isinstance(block, TimmBlock) or not is_plain_attention(block.attn, softmax=False):
            raise ConfigError(f"report: the attention of block {number} is not plain", "q/k norm, gates, other kinds")
        measured: dict[str, float] = {}
        if tokens is not None:
            normed = block.norm1(tokens)
            measured = {"token_cosine": token_cosine(normed), "effective_rank": effective_rank(normed)}
            tokens = block(tokens)
        rows.append(BlockReport(block=number, **_weights(block), **measured))
    return rows


def _weights(block: TimmBlock) -> dict[str, float]:
    query, key, value, output = head_factors(block.attn)
    root = query.shape[-1] ** 0.5
    product = value @ output
    values = torch.linalg.svdvals(product)
    squared = ((query.mT @ query) * (key.mT @ key)).sum((-2, -1))  # ‖W^Q W^Kᵀ‖_F² without forming it
    return {
        "kappa_vo": float(condition_number(product).kappa),
        "vo_min": float(values[-1]),
        "vo_max": float(values[0]),
        "logit_diagonal": float((query * key).sum((-2, -1)).mean()) / root,
        "logit_spread": float(squared.clamp_min(0.0).sqrt().mean()) / root,
        "kappa_q": float(condition_number(query).kappa.median()),
        "fc1_gain": _gain(block, "fc1"),
        "fc2_gain": _gain(block, "fc2"),
    }


def _gain(block: TimmBlock, name: str) -> float:
    weight = block.mlp.get_submodule(name).get_parameter("weight").double()
    return float(torch.linalg.matrix_norm(weight)) / math.sqrt(min(weight.shape))
