"""The weights of a plain attention as the papers write them: one factor a head for queries, keys, values, output."""

from __future__ import annotations

import torch
from timm.layers import Attention
from torch import Tensor, nn

from dinoskip.models.entmax import EntmaxAttention
from dinoskip.models.temperature import Temperature


def is_plain_attention(attention: nn.Module, *, softmax: bool = True) -> bool:
    """Whether this is timm's fused-qkv softmax attention with nothing added: no q/k norm, output norm or gate.

    A constant temperature is not counted as added; without ``softmax`` 1.5-entmax may take its place.
    """
    if type(attention) is not Attention and (softmax or type(attention) is not EntmaxAttention):
        return False
    extras = (attention.q_norm, attention.k_norm, getattr(attention, "norm", None))
    plain = all(extra is None or isinstance(extra, nn.Identity | Temperature) for extra in extras)
    return plain and getattr(attention, "gate", None) is None


def attention_width(attention: nn.Module) -> int:
    """Summed width of the heads: rows of each of the query, key and value parts of the fused ``qkv`` weight."""
    weight = attention.get_submodule("qkv").get_parameter("weight")
    return int(weight.shape[0]) // 3


@torch.no_grad()
def head_factors(attention: nn.Module) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The papers' row-convention factors of a plain attention, in float64.

    Returns W^Q and W^K of shape (heads, C, dh), W^V (C, A) and W^O (A, C), where A = heads·dh, so that
    ``logits = x W^Q_i (x W^K_i)^T / sqrt(dh)`` and the attention's linear part is ``W^V W^O``. W^Q has the temperature
    of the logits, if there is one.
    """
    weight = attention.get_submodule("qkv").get_parameter("weight").double()
    width, dim = attention_width(attention), weight.shape[1]
    heads = int(attention.num_heads)  # type: ignore[arg-type]
    query, key, value = weight.tensor_split(3)
    if isinstance(attention.q_norm, Temperature):
        query = query * attention.q_norm.factor
    split = (heads, width // heads, dim)
    output = attention.get_submodule("proj").get_parameter("weight").double()
    return query.reshape(split).mT, key.reshape(split).mT, value.T, output.T
