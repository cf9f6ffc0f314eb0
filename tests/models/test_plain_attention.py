from __future__ import annotations

import torch
from torch import nn

from dinoskip.models import Block, create_model
from dinoskip.models.attention_sites import head_factors, is_plain_attention

ARGUMENTS = {"dim": 48, "num_heads": 3, "qkv_bias": True}


def test_fused_attention_equals_the_explicit_one() -> None:
    """Check 20: SDPA inside; its scale is 1/sqrt(dh), as written out here from the papers' factors."""
    attention = create_model("vit_tiny_patch16", skip=False, depth=1).double().blocks[0].attn
    x = torch.randn(2, 9, 192, dtype=torch.float64)
    with torch.no_grad():
        attention.qkv.bias.zero_()
        assert attention.fused_attn
        fused = attention(x)
        attention.fused_attn = False
        unfused = attention(x)
        query, key, value, output = head_factors(attention)
        logits = torch.einsum("bnc,hcd,hed,bme->bhnm", x, query, key, x) / 64**0.5
        mixed = logits.softmax(-1) @ (x @ value).unflatten(-1, (3, 64)).transpose(1, 2)
        explicit = mixed.transpose(1, 2).flatten(2) @ output + attention.proj.bias
    assert (fused - unfused).abs().max() < 1e-10 * fused.abs().max()
    assert (fused - explicit).abs().max() < 1e-10 * fused.abs().max()


def test_plain_attention_is_recognised() -> None:
    assert is_plain_attention(Block(**ARGUMENTS).attn)
    assert not is_plain_attention(Block(**ARGUMENTS, qk_norm=True).attn)
    assert not is_plain_attention(Block(**ARGUMENTS, scale_attn_norm=True).attn)
    assert not is_plain_attention(Block(**ARGUMENTS, attn_layer="diff").attn)
    assert not is_plain_attention(nn.Linear(2, 2))
    assert not is_plain_attention(None)
