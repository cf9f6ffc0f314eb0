"""Networks of timm as their authors have them: how positions are resized; random networks whose branches count."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from dinoskip.io.files import hash_of
from dinoskip.models import load_backbone
from dinoskip.models.vit import bicubic_positions, dino_positions
from dinoskip.pipeline.stages.external import backbone_hash
from dinoskip.settings.specs import authors_positions

SMALL = "depth=2,embed_dim=24,num_heads=2,img_size=70,pretrained=false"
DINOV2 = f"timm:vit_small_patch14_dinov2,{SMALL}"


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("vit_small_patch16_224.dino", "dino"),
        ("vit_small_patch14_dinov2.lvd142m", "dino"),
        ("vit_small_patch14_dinov2", "dino"),
        ("vit_small_patch14_reg4_dinov2.lvd142m", "timm"),
        ("vit_base_patch16_224.mae", "bicubic"),
        ("vit_base_patch16_clip_224.openai", "timm"),
        ("vit_small_patch16_dinov3.lvd1689m", "timm"),
        ("vit_small_patch16_224.augreg_in21k", "timm"),
    ],
)
def test_rules_by_name(name: str, rule: str) -> None:
    assert authors_positions("timm", name) == rule
    assert authors_positions("hf", name) == "timm"


def last(spec: str, **more: Any) -> torch.Tensor:
    images = torch.randn(1, 3, 42, 56, generator=torch.Generator().manual_seed(0))
    return load_backbone(spec, **more).layers(images, [2])[2].tokens


def test_the_authors_rule_is_the_default_and_timms_an_option() -> None:
    assert torch.equal(last(DINOV2), last(DINOV2, pos_embed="dino"))
    assert not torch.allclose(last(DINOV2), last(f"{DINOV2},pos_embed=timm"), atol=1e-4)
    assert backbone_hash(DINOV2) != backbone_hash(f"{DINOV2},pos_embed=timm")
    registers = f"timm:vit_small_patch14_reg4_dinov2,{SMALL}"
    assert load_backbone(registers).pos_embed == "timm"
    plain = "timm:vit_small_patch16_224,pretrained=false,depth=2"
    assert load_backbone(plain).pos_embed == "timm"
    assert torch.equal(last(DINOV2, pos_embed="bicubic"), last(f"{DINOV2},pos_embed=bicubic"))


@pytest.mark.parametrize("grid", [(3, 4), (7, 7), (5, 5)])
def test_bicubic_positions_are_torchs_without_antialiasing(grid: tuple[int, int]) -> None:
    positions = torch.randn(1, 26, 8, generator=torch.Generator().manual_seed(1))
    resized = bicubic_positions(positions, grid)
    square = positions[:, 1:].reshape(1, 5, 5, 8).permute(0, 3, 1, 2)
    expected = F.interpolate(square, size=grid, mode="bicubic", align_corners=False, antialias=False)
    torch.testing.assert_close(resized[:, 1:], expected.permute(0, 2, 3, 1).reshape(1, -1, 8))
    assert torch.equal(resized[:, :1], positions[:, :1])
    assert torch.equal(resized, positions) == (grid == (5, 5))
    if grid != (5, 5):
        assert not torch.allclose(resized, dino_positions(positions, grid), atol=1e-4)


def test_branches_of_a_random_network_with_layer_scale_count(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="dinoskip"):
        backbone = load_backbone(DINOV2)
    assert "LayerScale of its random weights is 1 in 4 places" in caplog.text
    gammas = [value for name, value in backbone.model.named_parameters() if name.endswith("gamma")]
    assert len(gammas) == 4
    assert all((gamma == 1).all() for gamma in gammas)
    images = torch.randn(1, 3, 70, 70, generator=torch.Generator().manual_seed(0))
    layers = backbone.layers(images, [1, 2])
    first, second = layers[1].tokens, layers[2].tokens
    assert float((second - first).norm() / first.norm()) > 1e-3, "with LayerScale 1e-5 it is below 1e-6"


def test_a_network_without_layer_scale_is_as_it_was(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="dinoskip"):
        load_backbone("timm:vit_tiny_patch16_224,pretrained=false,depth=1")
    assert "LayerScale" not in caplog.text
    spec = "timm:vit_tiny_patch16_224,pretrained=false,depth=1"
    assert backbone_hash(spec) == hash_of(spec), "keys of such networks stay"
