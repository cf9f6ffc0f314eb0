"""Conditioning of attention weights."""

from __future__ import annotations

from torch import nn

from dinoskip.errors import ConfigError
from dinoskip.measures import Conditioning, condition_number
from dinoskip.models.vit import head_factors, is_plain_attention


def vo_condition(block: nn.Module) -> Conditioning:
    """Condition number of W^V W^O of a timm block, the full D × D product over all heads (Cutting the Skip, sec. 5.1).

    Products of single heads would hide independent draws per head, whose sum is badly conditioned. Raises
    :class:`ConfigError` when the block's attention is not plain.
    """
    attention = block.get_submodule("attn")
    if not is_plain_attention(attention):
        raise ConfigError(f"vo_condition: {type(attention).__name__} is not plain fused-qkv attention")
    _, _, value, output = head_factors(attention)
    return condition_number(value @ output)
