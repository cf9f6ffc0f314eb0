"""Attention of the CLS token, head by head, of every backbone whose queries and keys say all of it."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from dinoskip.errors import ConfigError, ReadError
from dinoskip.models.backbone import Backbone
from dinoskip.models.entmax import attention_rows


@torch.no_grad()
def cls_attention(backbone: Backbone, images: Tensor, blocks: Iterable[int]) -> dict[int, Tensor] | None:
    """Return the CLS token's attention to each patch, float32 (B, heads, h*w) for each of ``blocks`` (1..depth).

    images: float (B, 3, H, W), normalised, H and W multiples of the patch size. Rows run over all tokens, so
    what the CLS token and registers keep is missing from the sum over patches. None where the network has no CLS
    token, turns queries and keys by their position (rotary), is read level by level, or has blocks that give no
    queries and keys.
    Raises ValueError for a block that does not exist.
    """
    wanted = sorted(set(blocks))
    if not wanted or wanted[0] < 1 or wanted[-1] > backbone.depth:
        raise ReadError(f"blocks {wanted} must be one or more of 1..{backbone.depth} of {backbone.spec}")
    if not backbone.num_heads:  # read level by level
        return None
    adapter = backbone.adapter
    if not adapter.has_class_token:
        return None
    tokens, context = adapter.embed(images.to(backbone.device, backbone.dtype))
    if context is not None and len(context):  # what the other networks hand to their blocks: rotary positions
        return None
    weights: dict[int, Tensor] = {}
    for number in range(1, wanted[-1] + 1):
        if number in wanted:
            try:
                query, key = (adapter.project(number - 1, tokens, facet) for facet in ("query", "key"))
            except ConfigError:
                return None
            if query.shape != key.shape:  # heads share keys
                return None
            heads = (*query.shape[:2], adapter.num_heads, -1)
            query, key = (projected.reshape(heads).transpose(1, 2).float() for projected in (query, key))
            logits = query[:, :, :1] @ key.mT * query.shape[-1] ** -0.5
            rows = attention_rows(adapter.attention(number - 1), logits)
            weights[number] = rows[:, :, 0, adapter.num_prefix_tokens :]
        if number < wanted[-1]:
            tokens = adapter.run_block(number - 1, tokens, context)
    return weights
