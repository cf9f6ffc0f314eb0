from __future__ import annotations

from pathlib import Path

import pytest
import timm
import torch
from timm.models.vision_transformer import Block as TimmBlock
from torch import nn
from torch.nn import functional as F

from dinoskip.errors import ConfigError
from dinoskip.init import ModelConfig, build_model, trunc_normal_
from dinoskip.models import Block, VitConfig, create_model, list_models, load_backbone, save_weights
from dinoskip.models.vit import dino_positions, embed
from dinoskip.settings.config import dump
from tests.helpers.dino_modules import Dino

ARGUMENTS = {"dim": 48, "num_heads": 3, "qkv_bias": True}


def tokens(seed: int = 0, dim: int = 48) -> torch.Tensor:
    return torch.randn(2, 7, dim, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("training", [False, True])
def test_block_with_both_skips_is_timms_bitwise(training: bool) -> None:
    ours = Block(**ARGUMENTS, drop_path=0.4, init_values=0.1).train(training)
    theirs = TimmBlock(**ARGUMENTS, drop_path=0.4, init_values=0.1).train(training)
    theirs.load_state_dict(ours.state_dict(), strict=True)
    results = []
    for block in (ours, theirs):
        torch.manual_seed(3)  # drop path draws from the global generator
        results.append(block(tokens()))
    assert torch.equal(*results)


@pytest.mark.parametrize("training", [False, True])
def test_skipless_block_is_the_plain_composition(training: bool) -> None:
    block = Block(**ARGUMENTS, skip=False, drop_path=0.4).train(training)
    x = tokens()
    attended = block.attn(block.norm1(x))
    assert torch.equal(block(x), block.mlp(block.norm2(attended)))


def test_one_skip_alone() -> None:
    x = tokens()
    block = Block(**ARGUMENTS, skip="attention")
    kept = x + block.attn(block.norm1(x))
    assert torch.equal(block(x), block.mlp(block.norm2(kept)))
    block = Block(**ARGUMENTS, skip="mlp")
    attended = block.attn(block.norm1(x))
    assert torch.equal(block(x), attended + block.mlp(block.norm2(attended)))


@pytest.mark.parametrize(
    ("skip", "first", "second"),
    [(True, True, True), (False, False, False), ("attention", True, False), ("mlp", False, True)],
)
def test_drop_path_only_where_a_skip_is(skip: object, first: bool, second: bool) -> None:
    block = create_model("vit_tiny_patch8", skip=skip, depth=2, img_size=16, drop_path_rate=0.2).blocks[1]  # type: ignore[arg-type]
    assert (not isinstance(block.drop_path1, nn.Identity)) is first
    assert (not isinstance(block.drop_path2, nn.Identity)) is second


def test_masks_reach_the_attention() -> None:
    block = Block(**ARGUMENTS, skip=False).eval()
    x = tokens()
    changed = torch.cat([x[:, :-1], tokens(1)[:, -1:]], dim=1)
    causal, again = (block(v, is_causal=True) for v in (x, changed))
    assert torch.allclose(causal[:, :-1], again[:, :-1], atol=1e-6)
    assert not torch.allclose(block(x)[:, 0], block(changed)[:, 0], atol=1e-6)


@pytest.mark.parametrize("skip", [False, "attention", "mlp"])
def test_layer_scale_without_a_skip_is_refused(skip: object) -> None:
    with pytest.raises(ConfigError, match="init_values=1e-05: LayerScale without a skip"):
        create_model("vit_tiny_patch16", skip=skip, depth=1, init_values=1e-5)  # type: ignore[arg-type]


@pytest.mark.parametrize("skip", [True, False])
def test_state_dict_is_timms_both_ways(skip: bool) -> None:
    ours = create_model("vit_tiny_patch16", skip=skip, depth=2)
    theirs = timm.create_model("vit_tiny_patch16_224", depth=2, num_classes=0)
    theirs.load_state_dict(ours.state_dict(), strict=True)
    ours.load_state_dict(theirs.state_dict(), strict=True)


def test_skip_model_computes_what_timm_computes() -> None:
    ours = create_model("vit_tiny_patch16", depth=2, img_size=32).eval()
    theirs = timm.create_model("vit_tiny_patch16_224", depth=2, num_classes=0, img_size=32).eval()
    theirs.load_state_dict(ours.state_dict())
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(ours(images), theirs(images))


def test_position_embedding_is_interpolated_in_place() -> None:
    """It is used as it is on its own grid; on a larger one corners stay near the corners they came from."""
    model = create_model("vit_tiny_patch8", depth=1, img_size=32)
    with torch.no_grad():
        model.patch_embed.proj.weight.zero_()
        model.patch_embed.proj.bias.zero_()
        model.pos_embed.copy_(torch.linspace(0, 1, 17).view(1, 17, 1).expand_as(model.pos_embed))
    same = embed(model, torch.zeros(1, 3, 32, 32))
    assert torch.allclose(same[0, 1:, 0], model.pos_embed[0, 1:, 0])
    larger = embed(model, torch.zeros(1, 3, 64, 64))[0, 1:, 0].reshape(8, 8)
    assert (larger.diff(dim=0) > 0).all()
    assert torch.allclose(larger.mean(), model.pos_embed[0, 1:, 0].mean(), atol=1e-3)


@pytest.mark.parametrize("name", list_models())
def test_timm_builds_our_skipless_models(name: str) -> None:
    model = timm.create_model(f"skipless_{name}_224", depth=1, num_classes=7)
    block = model.blocks[0]
    assert isinstance(block, Block)
    assert block.skip_weights == (0, 0)
    assert model.head.out_features == 7
    assert model.pretrained_cfg["architecture"] == f"skipless_{name}_224"


def test_timm_features_of_our_models() -> None:
    model = timm.create_model("skipless_vit_tiny_patch16_224", depth=2, features_only=True, out_indices=(0, 1))
    assert [f.shape for f in model(torch.randn(1, 3, 32, 48))] == [(1, 192, 2, 3)] * 2


def test_gradients_reach_every_parameter_of_a_skipless_model() -> None:
    model = create_model("vit_tiny_patch8", skip=False, depth=2, img_size=16)
    F.mse_loss(model(torch.randn(2, 3, 16, 16)), torch.randn(2, 192)).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("grid", [(14, 14), (30, 40), (40, 30), (7, 28), (5, 5), (15, 14), (60, 60)])
def test_positions_by_dinos_own_rule(grid: tuple[int, int]) -> None:
    network = Dino(patch_size=16, dim=24, img_size=224, depth=0)
    tokens, (h, w) = torch.zeros(1, grid[0] * grid[1] + 1, 24), grid
    expected = network.interpolate_pos_encoding(tokens, 16 * h, 16 * w)
    assert torch.equal(dino_positions(network.pos_embed, grid), expected)
    plain = network.pos_embed[:, 1:].reshape(1, 14, 14, 24).permute(0, 3, 1, 2)
    resized = F.interpolate(plain, size=grid, mode="bicubic", antialias=True).permute(0, 2, 3, 1).flatten(1, 2)
    assert torch.equal(expected[:, 1:], resized) == (grid == (14, 14))


@pytest.mark.parametrize("size", [(96, 96), (224, 224), (96, 128), (240, 224)])
def test_positions_in_training_are_those_of_facebookresearch_dino(size: tuple[int, int]) -> None:
    """Tokens that enter the first block of a network in train mode, against the authors' own prepare_tokens."""
    theirs = Dino(patch_size=16, dim=192, img_size=224, depth=0)
    ours = create_model("vit_tiny_patch16", depth=1, position_resize="dino").train()
    with torch.no_grad():
        for name in ("cls_token", "pos_embed", "patch_embed.proj.weight", "patch_embed.proj.bias"):
            torch.nn.init.normal_(ours.get_parameter(name))
            theirs.get_parameter(name).copy_(ours.get_parameter(name))
    images = torch.randn(2, 3, *size)
    torch.testing.assert_close(embed(ours, images), theirs.prepare_tokens(images), rtol=1e-5, atol=1e-5)
    ours.position_resize = "timm"
    assert torch.allclose(embed(ours, images), theirs.prepare_tokens(images), atol=1e-5) == (size == (224, 224))


def test_timms_resize_flattens_fresh_positions_for_small_crops() -> None:
    """Deviation of a fresh embedding at 96 pixels, as measured for docs/backbones.md: 0.0072 and 0.0173."""
    spread = {}
    for rule in ("timm", "dino"):
        model = create_model("vit_small_patch16", depth=1, position_resize=rule)  # type: ignore[arg-type]
        trunc_normal_(model, 0)
        with torch.no_grad():
            model.patch_embed.proj.weight.zero_()
            model.patch_embed.proj.bias.zero_()
            spread[rule] = float(embed(model, torch.zeros(1, 3, 96, 96))[0, 1:].std())
    assert spread["timm"] == pytest.approx(0.0072, abs=2e-4)
    assert spread["dino"] == pytest.approx(0.0173, abs=4e-4)


def test_dinos_resize_needs_positions_of_a_cls_token_and_patches_alone() -> None:
    with pytest.raises(ConfigError, match="needs positions of one CLS token"):
        create_model("vit_tiny_patch16", depth=1, position_resize="dino", no_embed_class=True)


def test_weights_say_how_positions_are_resized(tmp_path: Path) -> None:
    images = torch.randn(1, 3, 96, 96)
    features = {}
    for rule in ("timm", "dino"):
        config = ModelConfig(name="vit_tiny_patch16", depth=1, position_resize=rule)  # type: ignore[arg-type]
        model = build_model(config, seed=0).eval()
        save_weights(tmp_path / rule, model.state_dict(), config, {})
        backbone = load_backbone(f"weights:{tmp_path / rule}")
        assert backbone.pos_embed == rule
        features[rule] = backbone.layers(images, [1], norm="final")[1].tokens
        assert torch.equal(features[rule], model.forward_features(images)[:, 1:])
        other = load_backbone(f"weights:{tmp_path / rule},pos_embed={'dino' if rule == 'timm' else 'timm'}")
        assert not torch.allclose(other.layers(images, [1], norm="final")[1].tokens, features[rule], atol=1e-4)
    assert ModelConfig().position_resize == "dino"
    assert VitConfig().position_resize == "timm", "weights files written before the option resize as timm does"
    assert "position_resize" not in dump(VitConfig())
    assert dump(ModelConfig(position_resize="timm"))["position_resize"] == "timm"
