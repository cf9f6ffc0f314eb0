"""1.5-entmax attention (Peters et al. 2019, arXiv:1905.05702): softmax's sparse neighbour, rows with exact zeros."""

from __future__ import annotations

from typing import Any

import torch
from timm.layers import Attention
from torch import Tensor, nn

from dinoskip.runtime.precision import at_least_float32


def entmax15(logits: Tensor) -> Tensor:
    """Rows p = max(z - τ, 0)² of sum 1 over the last dimension, z = logits / 2, in at least float32; exact (a sort).

    The gradient is s (g - <s, g> / Σs) with s = √p: zero outside the support, of sum 0. An entry 2 or more below the
    largest is always 0.
    """
    if logits.requires_grad and torch.is_grad_enabled():
        rows: Tensor = _Entmax15.apply(logits)
        return rows
    return _rows(logits)


def _rows(logits: Tensor) -> Tensor:
    work = at_least_float32(logits)
    z = ((work - work.amax(-1, keepdim=True)) / 2).clamp(min=-1)  # what lies lower is outside every support
    ordered = z.sort(-1, descending=True).values
    count = torch.arange(1, z.shape[-1] + 1, device=z.device, dtype=z.dtype)
    mean = ordered.cumsum(-1) / count
    spread = ordered.square().cumsum(-1) - count * mean.square()
    thresholds = mean - ((1 - spread).clamp(min=0) / count).sqrt()
    size = (thresholds <= ordered).sum(-1, keepdim=True)
    inside = z >= ordered.gather(-1, size - 1)
    # Once more on the support alone, where nothing cancels. Ties at its end have p = 0 or belong to it.
    number = inside.sum(-1, keepdim=True)
    mean = (z * inside).sum(-1, keepdim=True) / number
    spread = ((z - mean).square() * inside).sum(-1, keepdim=True)
    root = (z - mean + ((1 - spread).clamp(min=0) / number).sqrt()).clamp(min=0)
    return torch.where(z > -1, root, 0).square()


class _Entmax15(torch.autograd.Function):
    @staticmethod
    def forward(logits: Tensor) -> Tensor:
        return _rows(logits)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(output)
        ctx.dtype = inputs[0].dtype

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        root = ctx.saved_tensors[0].sqrt()
        weighted = root * gradient
        result: Tensor = weighted - root * (weighted.sum(-1, keepdim=True) / root.sum(-1, keepdim=True))
        return result.to(ctx.dtype)


class EntmaxAttention(Attention):
    """timm's attention with 1.5-entmax in place of softmax; memory of N² a head. It takes no masks."""

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        """Map tokens (B, N, C) to tokens (B, N, C); ValueError if there is a mask."""
        if attn_mask is not None or is_causal:
            raise ValueError("attention entmax15 takes no mask")
        query, key, value = self.qkv(x).unflatten(-1, (3, self.num_heads, self.head_dim)).permute(2, 0, 3, 1, 4)
        query, key = self.q_norm(query), self.k_norm(key)
        rows = self.attn_drop(entmax15((query * self.scale) @ key.mT).to(value.dtype))
        mixed = (rows @ value).transpose(1, 2).flatten(2)
        out: Tensor = self.proj_drop(self.proj(self.norm(mixed)))
        return out


def attention_rows(attention: nn.Module | None, logits: Tensor) -> Tensor:
    """Return the attention weights that a module computes from logits (..., N)."""
    return entmax15(logits) if isinstance(attention, EntmaxAttention) else logits.softmax(-1)
