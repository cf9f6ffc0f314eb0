"""Properties of the calibrated initialisation on real photographs: those it was measured on, and others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor
from torch.nn import functional as F

from dinoskip.diagnostics.propagation import PropagationRow, propagation
from dinoskip.errors import ConfigError
from dinoskip.init import calibrated_, skipless_, trunc_normal_
from dinoskip.init.calibrated import attention_scale
from dinoskip.init.orthogonal import haar
from dinoskip.models import create_model
from dinoskip.models.vit import embed
from dinoskip.runtime.randomness import torch_rng
from tests.helpers.photographs import photographs


def fresh(depth: int = 12, **kw: Any) -> VisionTransformer:
    model = create_model(
        "vit_mini_patch8", skip=False, depth=depth, img_size=48, weight_init="skip", embed_dim=96, num_heads=3, **kw
    )
    trunc_normal_(model)
    return model.eval()


def small(depth: int = 12, seed: int = 0, **settings: Any) -> VisionTransformer:
    model = fresh(depth)
    calibrated_(model, photographs(48), seed=seed, **settings)
    return model


def attention(model: VisionTransformer, index: int, tokens: Tensor) -> Tensor:
    """Attention (B, heads, N, N) of a block."""
    block = model.blocks[index]
    width = tokens.shape[-1] // block.attn.num_heads
    query, key, _ = block.attn.qkv(block.norm1(tokens)).unflatten(-1, (3, -1, width)).permute(2, 0, 3, 1, 4)
    return (query @ key.mT / width**0.5).softmax(-1)


def measured(name: str, model: object, size: int, every: int = 1) -> list[PropagationRow]:
    """Rows on held-out photographs, printed."""
    assert isinstance(model, VisionTransformer)
    rows = propagation(model, photographs(size, held_out=True)[::every])
    norms = [row.gradient for row in rows]
    print(f"{name}: token cosine by block", *(f"{row.token_cosine:.2f}" for row in rows))
    print("  CLS cosine between images", *(f"{row.cls_cosine:.2f}" for row in rows))
    print(f"  gradient norms of blocks, largest / smallest {max(norms) / min(norms):.1f}")
    return rows


def check_liveness(rows: list[PropagationRow], gradients: float) -> None:
    norms = [row.gradient for row in rows]
    assert rows[-1].token_cosine < 0.5
    assert rows[-1].cls_cosine < 0.3
    assert max(norms) / min(norms) < gradients


@pytest.mark.parametrize(("depth", "gradients"), [(12, 15), pytest.param(24, 60, marks=pytest.mark.slow)])
def test_tokens_and_images_stay_apart_where_the_papers_collapse(depth: int, gradients: float) -> None:
    check_liveness(measured("calibrated", small(depth), 48), gradients)
    check_liveness(measured("calibrated, mirrored", small(depth, mlp="mirrored"), 48), gradients)
    mixed = measured("calibrated, one head mixing in every fourth block", small(depth, mixing_heads=1), 48)
    check_liveness(mixed, gradients)
    assert measured("paper", skipless_(fresh(depth)), 48)[-1].token_cosine > 0.97


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_tokens_and_images_stay_apart_at_vit_s() -> None:
    def network(skip: bool) -> VisionTransformer:
        model = create_model("vit_small_patch16", skip=skip, weight_init="skip")
        trunc_normal_(model)
        return model.eval()

    measured("skip", network(True), 224, 3)
    assert measured("paper", skipless_(network(False)), 224, 3)[-1].token_cosine > 0.8
    starts: list[dict[str, Any]] = [{}, {"mlp": "mirrored"}, {"mixing_heads": 1}, {"mixing_heads": 2}]
    for settings in starts:
        model = calibrated_(network(False), photographs(224)[::2], **settings)
        check_liveness(measured(f"calibrated {settings}", model, 224, 3), 15)


@torch.no_grad()
def test_the_first_class_token_attends_to_all_alike() -> None:
    model = small().float()
    images = photographs(48, held_out=True).float()
    rows = attention(model, 0, embed(model, images))[:, :, 0]
    assert float((rows - 1 / rows.shape[-1]).abs().max()) < 1e-7
    assert model.load_state_dict(fresh().state_dict(), strict=True)


@torch.no_grad()
@pytest.mark.parametrize("diagonal", [0.3, 0.5, 0.99])
def test_patches_attend_to_themselves_as_asked_or_the_scale_is_at_its_limit(diagonal: float) -> None:
    model = small(depth=4, diagonal=diagonal).double()
    tokens = embed(model, photographs(48)[:8])
    for index, block in enumerate(model.blocks):
        weights = attention(model, index, tokens)[:, :, 1:, 1:].diagonal(0, -2, -1)
        query, key = block.attn.qkv.weight[:192].split(96)
        scale = float(torch.linalg.matrix_norm(key[:32], 2)) ** 2
        print(f"block {index + 1}: median A_ii {float(weights.median()):.3f}, s {scale:.3f}")
        assert abs(float(weights.median()) - diagonal) < 0.02 or scale == pytest.approx(4.0, abs=1e-5)
        assert scale < 4.0 + 1e-5
        assert torch.equal(query, key) is (index > 0)
        tokens = block(tokens)


@torch.no_grad()
def test_mixing_heads_average_in_every_so_many_blocks_and_the_others_are_as_without() -> None:
    model, plain = (small(depth=5, mixing_heads=heads, mixing_every=2) for heads in (2, 0))
    tokens = embed(model, photographs(48, held_out=True).float())
    for index, block in enumerate(model.blocks):
        weights = attention(model.float(), index, tokens)[:, :, 1:]  # (B, heads, patches, N)
        even = weights.diagonal(1, -2, -1).median(-1).values.mean(0) * weights.shape[-1]
        print(f"block {index + 1}: attention to oneself, times tokens, by head", even.tolist())
        mixed = [1, 2] if index in {1, 3} else []
        assert all((float(even[head]) < 1.5) is (head in mixed) for head in range(3))
        tokens = block(tokens)
    first, second = (network.blocks[1].attn.qkv.weight.unflatten(0, (3, 3, 32)) for network in (model, plain))
    assert torch.equal(first[2], second[2])
    assert torch.equal(first[:2, 0], second[:2, 0])
    assert torch.linalg.svdvals(first[:2, 1:].double()).allclose(torch.tensor(0.5).double(), atol=1e-5)
    assert not torch.allclose(first[0, 1], first[1, 1], atol=0.01), "queries and keys are independent"


def test_what_is_centred_has_no_mean() -> None:
    model = small(depth=3, centring=1.0, gain=2.0).double()
    tokens = embed(model, photographs(48))
    assert float(model.patch_embed(photographs(48)).mean((0, 1, 2)).abs().max()) < 1e-6
    for block in model.blocks:
        attended = block.attn(block.norm1(tokens))
        tokens = block.mlp(block.norm2(attended))
        assert float(attended[:, 1:].mean((0, 1)).abs().max()) < 1e-5
        assert float(tokens[:, 1:].mean((0, 1)).abs().max()) < 1e-5
        assert float(tokens[:, 1:].square().mean().sqrt()) == pytest.approx(1.0, abs=1e-5)
        assert torch.linalg.svdvals(block.mlp.fc1.weight).allclose(torch.tensor(2.0).double(), atol=1e-5)


def test_half_of_a_mirrored_mlp_is_a_rotation_and_the_other_half_as_large() -> None:
    model = small(depth=2, mlp="mirrored", centring=1.0).double()
    tokens = embed(model, photographs(48))
    for block in model.blocks:
        attended = block.attn(block.norm1(tokens))
        normed, mlp = block.norm2(attended), block.mlp
        units = len(mlp.fc1.weight) // 4
        mirror, bend = slice(2 * units), slice(2 * units, None)
        singular = torch.linalg.svdvals(mlp.fc1.weight[bend])
        assert singular.allclose(torch.tensor(2.0).double(), atol=1e-6), "the half that bends has a gain of 2"
        linear = F.gelu(normed @ mlp.fc1.weight[mirror].T) @ mlp.fc2.weight[:, mirror].T
        size = float(linear.square().mean().sqrt() / normed.square().mean().sqrt())
        rotation = mlp.fc2.weight[:, :units] @ mlp.fc1.weight[:units] / size
        assert torch.allclose(rotation @ rotation.T, torch.eye(96).double(), atol=1e-6)
        assert torch.allclose(linear, size * normed @ rotation.T, atol=1e-6)
        bent = (F.gelu(normed @ mlp.fc1.weight[bend].T) @ mlp.fc2.weight[:, bend].T)[:, 1:]
        linear = linear[:, 1:]
        assert float((bent - bent.mean((0, 1))).std() / linear.std()) == pytest.approx(1.0, abs=0.01)
        tokens = mlp(normed)
        assert float(tokens[:, 1:].mean((0, 1)).abs().max()) < 1e-5
        assert float(tokens[:, 1:].square().mean().sqrt()) == pytest.approx(1.0, abs=1e-5)


def test_same_seed_same_bits_whatever_the_threads_and_the_weights_before() -> None:
    first = small(depth=3).state_dict()
    threads = torch.get_num_threads()
    torch.set_num_threads(threads % 2 + 1)
    try:
        assert all(torch.equal(tensor, first[name]) for name, tensor in small(depth=3).state_dict().items())
        assert torch.get_num_threads() == threads % 2 + 1
    finally:
        torch.set_num_threads(threads)
    other = small(depth=3, seed=1).state_dict()
    assert torch.equal(other["patch_embed.proj.bias"], first["patch_embed.proj.bias"])
    assert not torch.equal(other["blocks.2.mlp.fc2.weight"], first["blocks.2.mlp.fc2.weight"])
    again = calibrated_(skipless_(fresh(3), seed=5), photographs(48)).state_dict()
    assert all(torch.equal(tensor, first[name]) for name, tensor in again.items())


def test_only_biases_and_scales_depend_on_the_images() -> None:
    here, there = small(depth=2), fresh(2)
    calibrated_(there, photographs(48, held_out=True))
    for name, tensor in here.state_dict().items():
        other = there.state_dict()[name]
        if name.endswith("bias") and ("proj" in name or "fc2" in name):
            assert not torch.equal(tensor, other), name
        elif name.endswith("fc2.weight"):
            assert torch.allclose(tensor / tensor.norm(), other / other.norm(), atol=1e-6), name
        elif not name.endswith("qkv.weight"):
            assert torch.equal(tensor, other), name


def test_the_scale_is_found_where_attention_to_oneself_is_the_target() -> None:
    tokens = torch.randn(2, 30, 64, dtype=torch.float64, generator=torch_rng(0, "tokens"))
    factor = torch.stack([haar(64, 32, torch_rng(0, "factor", head)) for head in range(3)])
    scale = attention_scale(tokens, factor, factor, 0.4, 9.0, 1)
    logits = (tokens[:, None] @ factor) @ (tokens[:, None] @ factor).mT / 32**0.5
    assert float((scale * logits).softmax(-1).diagonal(0, -2, -1)[..., 1:].median()) == pytest.approx(0.4, abs=1e-5)
    assert attention_scale(tokens, factor, factor, 0.4, scale / 2, 1) == scale / 2


def test_what_cannot_be_calibrated_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    images = photographs(48)
    for settings in ({"centring": 1.5}, {"gain": 0.0}, {"diagonal": 1.0}, {"max_scale": -1.0}, {"c": 0.0}):
        with pytest.raises(
            ConfigError, match=f"{next(iter(settings))}: should be .* was given {next(iter(settings.values()))}"
        ):
            calibrated_(fresh(1), images, **settings)
    with pytest.raises(ConfigError, match=r"blocks\.0\.mlp has 192 hidden units for a width of 96"):
        calibrated_(fresh(1, mlp_ratio=2), images, mlp="mirrored")
    with pytest.raises(ConfigError, match="mixing_heads: should be greater than or equal to 0"):
        calibrated_(fresh(1), images, mixing_heads=-1)
    with pytest.raises(ConfigError, match=r"blocks\.0\.attn has 3 heads, mixing_heads=4"):
        calibrated_(fresh(1), images, mixing_heads=4)
    with pytest.raises(ConfigError, match="must be finite"):
        calibrated_(fresh(1), images * torch.nan)
    with pytest.raises(ConfigError, match=r"blocks\.0\.attn\.qkv has no bias"):
        calibrated_(fresh(1, qkv_bias=False), images)
    with caplog.at_level("WARNING", "dinoskip"):
        calibrated_(create_model("vit_mini_patch8", depth=1, img_size=48), images)
    assert "has skip connections" in caplog.text
