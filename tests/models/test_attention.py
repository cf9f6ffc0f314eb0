"""CLS attention against what the networks' own attention modules compute."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch
from torch import nn

from dinoskip.models import Backbone, Block, create_model
from dinoskip.models.attention import cls_attention
from dinoskip.models.attention_sites import head_factors, is_plain_attention

IMAGES = torch.randn(2, 3, 32, 48, generator=torch.Generator().manual_seed(0))
SHAPE: dict[str, Any] = {"depth": 3, "embed_dim": 48, "num_heads": 3, "img_size": 32, "dynamic_img_size": True}


def shaken(network: Any) -> Any:
    rng = torch.Generator().manual_seed(1)
    for parameter in network.parameters():
        parameter.data.add_(torch.randn(parameter.shape, generator=rng), alpha=0.3)
    return network.eval()


@pytest.mark.parametrize(
    "network",
    [
        create_model("vit_tiny_patch16", depth=3, img_size=32),
        create_model("vit_tiny_patch16", skip=False, depth=3, img_size=32),
        timm.create_model("vit_tiny_patch16_224", qk_norm=True, **SHAPE),
        timm.create_model("vit_small_patch14_reg4_dinov2", patch_size=16, **SHAPE),
    ],
    ids=["skip", "skipless", "qk_norm", "registers"],
)
def test_equals_the_softmax_inside_timms_attention(network: Any) -> None:
    seen = []
    shaken(network)
    for block in network.blocks:
        block.attn.fused_attn = False
        block.attn.attn_drop.register_forward_hook(lambda module, inputs, output: seen.append(output))
    with torch.no_grad():
        network.forward_features(IMAGES)
    found = cls_attention(Backbone.from_model(network), IMAGES, [1, 3])
    assert found is not None
    assert set(found) == {1, 3}
    for block, own in found.items():
        torch.testing.assert_close(own, seen[block - 1][:, :, 0, network.num_prefix_tokens :], rtol=1e-4, atol=1e-7)
        assert own.shape == (2, network.blocks[0].attn.num_heads, 6)


def test_equals_the_attentions_that_transformers_returns() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.Dinov2WithRegistersConfig(
        hidden_size=48, num_attention_heads=3, num_hidden_layers=2, patch_size=16, image_size=32
    )
    config._attn_implementation = "eager"
    network = shaken(transformers.Dinov2WithRegistersModel(config))
    with torch.no_grad():
        expected = network(IMAGES, output_attentions=True).attentions
    found = cls_attention(Backbone.from_model(network), IMAGES, [1, 2])
    assert found is not None
    for block, own in found.items():
        torch.testing.assert_close(own, expected[block - 1][:, :, 0, 5:], rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("vit_base_patch16_siglip_224", {}),  # no CLS token
        ("eva02_tiny_patch14_224", {"patch_size": 16}),  # rotary positions
        ("vit_base_patch16_rpn_224", {"class_token": True, "global_pool": "token"}),  # blocks of another kind
    ],
)
def test_none_where_queries_and_keys_do_not_say_it(name: str, options: dict[str, Any]) -> None:
    network = timm.create_model(name, num_classes=0, **SHAPE, **options)
    assert cls_attention(Backbone.from_model(network), IMAGES, [1]) is None


def test_blocks_that_do_not_exist() -> None:
    backbone = Backbone.from_model(create_model("vit_tiny_patch16", depth=1, img_size=32))
    for blocks in ([], [0], [2]):
        with pytest.raises(ValueError, match=r"1\.\.1"):
            cls_attention(backbone, IMAGES, blocks)


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
