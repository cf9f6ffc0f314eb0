"""All instruments on every block of a backbone."""

from __future__ import annotations

import math

import pytest
import torch

from dinoskip.diagnostics import (
    analyze_blocks,
    distortions,
    quantised,
)
from dinoskip.diagnostics.block_analysis import BlockAnalysisConfig
from dinoskip.init import skipless_
from dinoskip.models import Backbone, load_backbone
from tests.helpers.dino_modules import Dino
from tests.helpers.small_network import IMAGES, network, randn


def test_examination_of_every_kind_of_backbone() -> None:
    config = BlockAnalysisConfig(lanczos_steps=6, weight_tokens=5)
    timm = load_backbone("timm:vit_tiny_patch16_224,pretrained=false,depth=1,img_size=32")
    for backbone in (network(), network(qk_norm=True), timm):
        images = IMAGES if backbone.dim == 24 else IMAGES[..., :32, :32]
        found = analyze_blocks(backbone, images, config).as_json()
        assert [row["block"] for row in found["rows"]] == list(range(1, backbone.depth + 1))
        assert all(row["kappa_attention"] > 1 and row["kappa_k"] > 1 for row in found["rows"])


def other(name: str) -> Backbone:
    """A network that is not timm's VisionTransformer."""
    if name == "eva":
        return load_backbone("timm:eva02_tiny_patch14_224,pretrained=false,depth=2,img_size=56", dtype=torch.float64)
    torch.manual_seed(0)
    if name == "authors":
        return Backbone.from_model(Dino(patch_size=16, dim=24, depth=2, num_heads=2, img_size=48).double())
    library = pytest.importorskip("transformers")
    settings = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
    return Backbone.from_model(library.ViTModel(library.ViTConfig(**settings, image_size=48, patch_size=16)).double())


@pytest.mark.parametrize("name", ["eva", "transformers", "authors"])
def test_networks_of_other_libraries_are_looked_into_and_quantised(name: str) -> None:
    backbone = other(name)
    images = randn(2, 3, 56, 56) if name == "eva" else IMAGES
    rows = analyze_blocks(backbone, images).rows
    assert [row.block for row in rows] == [1, 2]
    assert all(-1 < row.token_cosine < 1 and row.grad_block > 0 and math.isnan(row.kappa_k) for row in rows)
    assert [one.site for one in distortions(backbone, images, images, (8,))] == [
        *(f"{b}.{part}" for b in (1, 2) for part in ("norm1", "attn", "norm2", "mlp")),
        "norm",
    ]
    coarse, fine = (quantised(backbone, bits, bits, images) for bits in (6, 12))
    exact, near, far = (b.layers(images, [2], norm="final")[2].tokens for b in (backbone, fine, coarse))
    assert 0 < (near - exact).norm() < 0.05 * (far - exact).norm()


def test_a_collapsed_network_is_flagged() -> None:
    backbone = network(skip=False)
    with torch.no_grad():
        for block in backbone.model.blocks:
            block.attn.qkv.weight[:48] = 0  # uniform attention
    row = analyze_blocks(backbone, IMAGES, BlockAnalysisConfig(lanczos_steps=0, weight_tokens=0)).rows[1]
    assert row.rank_deficient
    assert row.token_cosine == pytest.approx(1)
    assert math.isnan(row.kappa_k)


def test_initialised_attention_is_better_conditioned() -> None:
    default, ours = network(skip=False), network(skip=False)
    skipless_(ours.model)
    config = BlockAnalysisConfig(lanczos_steps=0)
    found = [analyze_blocks(backbone, IMAGES, config).rows[0] for backbone in (default, ours)]
    assert found[1].kappa_vo == pytest.approx(1, abs=1e-4)
    assert found[0].kappa_attention > 3 * found[1].kappa_attention
    assert found[1].attention_entropy < 0.9 < found[0].attention_entropy
