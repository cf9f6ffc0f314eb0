"""The pyramid on maps of every stride, and the map that it reads."""

from __future__ import annotations

import pytest
import torch
from timm import create_model as timm_model

from dinoskip.errors import ConfigError
from dinoskip.models import Backbone, create_model
from dinoskip_detection.config import DetectionConfig
from dinoskip_detection.model import BlockMap, SimplePyramid


@pytest.mark.parametrize("stride", [2, 4, 8, 16, 32])
def test_strides_of_the_pyramid(stride: int) -> None:
    maps = SimplePyramid(24, stride, 8)(torch.zeros(1, 24, 128 // stride, 128 // stride))
    assert [128 // one.shape[-1] for one in maps.values()] == [4, 8, 16, 32, 64]
    assert {one.shape[1] for one in maps.values()} == {8}


def backbone_of(patch: int) -> Backbone:
    torch.manual_seed(0)
    return Backbone.from_model(create_model(f"vit_mini_patch{patch}", depth=2, img_size=4 * patch))


@pytest.mark.parametrize("norm", ["none", "final", "layer"])
@pytest.mark.parametrize("name", ["vit", "swin"])
def test_the_map_is_the_block_with_gradients_and_without(norm: str, name: str) -> None:
    torch.manual_seed(0)
    if name == "vit":
        backbone = backbone_of(8)
    else:
        swin = timm_model("swin_tiny_patch4_window7_224", pretrained=False, embed_dim=24, img_size=64, window_size=2)
        backbone = Backbone.from_model(swin, image_size=64)
    config, block = DetectionConfig.model_validate({"norm": norm}), 2
    images = torch.rand(2, 3, 64, 64)
    frozen = BlockMap(backbone, block, config)(images)
    read = backbone.layers(images, [block], norm=norm)[block]
    assert torch.equal(frozen.flatten(2).transpose(1, 2), read.tokens)
    assert not frozen.requires_grad
    trained = BlockMap(backbone, block, config.model_copy(update={"fine_tune": True}))(images)
    assert trained.requires_grad
    torch.testing.assert_close(trained.detach(), frozen, rtol=1e-5, atol=1e-5)


def test_cells_that_are_no_power_of_two() -> None:
    backbone = backbone_of(14)
    read = BlockMap(backbone, 2, DetectionConfig())
    assert (read.stride, read.multiple) == (16, 32)
    assert read(torch.zeros(1, 3, 96, 64)).shape[2:] == (6, 4), "a cell is 16 pixels of the image"


def test_hooked_networks_are_frozen_only() -> None:
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 4, 4))
    backbone = Backbone.from_model(module, "mine", layers=["0"], image_size=32)
    assert BlockMap(backbone, 1, DetectionConfig())(torch.zeros(1, 3, 32, 32)).shape == (1, 8, 8, 8)
    with pytest.raises(ConfigError, match="mine: fine_tune is for networks of timm"):
        BlockMap(backbone, 1, DetectionConfig(fine_tune=True))
