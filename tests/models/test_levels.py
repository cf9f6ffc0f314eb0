"""Networks that are read level by level give what their own forward pass computes there."""

from __future__ import annotations

import pytest
import timm
import torch
import torchvision
from torch import Tensor, nn

from dinoskip.errors import ConfigError
from dinoskip.models import Backbone
from dinoskip.models.levels import layout_of, map_layouts, usual_layers

_SWIN = {"embed_dim": 24, "depths": (1, 1, 1, 1), "num_heads": (1, 2, 4, 8)}
TIMM = {
    "resnet18": {},
    "convnext_atto": {},
    "swin_tiny_patch4_window7_224": {"strict_img_size": False, **_SWIN},
    "pvt_v2_b0": {},
    "davit_tiny": {"depths": (1, 1, 1, 1), "embed_dims": (24, 40, 48, 56), "num_heads": (1, 1, 1, 1)},
    "xcit_nano_12_p16_224": {"depth": 2},
    "cait_xxs24_224": {"depth": 2, "img_size": 64},
    "convmixer_768_32": {},
    "beit_base_patch16_224": {"depth": 2, "embed_dim": 32, "num_heads": 2, "img_size": 64},
}


def _timm(name: str) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return timm.create_model(name, num_classes=0, **TIMM[name]).eval()


def _seen(model: nn.Module, name: str, images: Tensor) -> Tensor:
    """Return the output of a submodule in a plain forward pass."""
    kept: list[Tensor] = []
    handle = model.get_submodule(name).register_forward_hook(lambda module, inputs, output: kept.append(output))
    with torch.no_grad():
        model(images)
    handle.remove()
    return kept[-1]


@pytest.mark.parametrize("name", TIMM)
def test_levels_are_those_of_a_plain_forward_pass(name: str) -> None:
    model = _timm(name)
    backbone = Backbone.from_model(model, image_size=64 if name != "convmixer_768_32" else 70)
    side = backbone.size_multiple * (64 // backbone.size_multiple or 1)
    images = torch.randn(2, 3, side, side)
    read = backbone.layers(images, backbone.numbers)
    for number, level in zip(backbone.numbers, backbone.reader.levels, strict=True):
        features = read[number]
        h, w = features.grid
        assert (h * level.stride, w * level.stride) == (side, side)
        assert features.tokens.shape == (2, h * w, level.width)
        plain = _seen(model, level.name, images)
        if plain.ndim == 3:
            plain = plain[:, plain.shape[1] - h * w :]
        elif tuple(plain.shape[1:3]) != (h, w):
            plain = plain.flatten(2).mT
        assert torch.equal(features.tokens, plain.reshape(features.tokens.shape))


def test_nothing_is_left_behind() -> None:
    model = torchvision.models.resnet18(weights=None)
    names = set(vars(model))
    backbone = Backbone.from_model(model, layers=["layer2", "layer3"])
    backbone.layers(torch.zeros(1, 3, 64, 96), [1, 2])
    assert set(vars(model)) == names
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize(
    ("name", "strides", "first"),
    [
        ("resnet18", [2, 4, 8, 16, 32], "relu"),
        ("swin_t", [4, 8, 16, 32], "features.1"),
        ("convnext_tiny", [4, 8, 16, 32], "features.1"),
        ("vit_b_16", [16] * 12, "encoder.layers.encoder_layer_0"),
    ],
)
def test_usual_layers_of_torchvision(name: str, strides: list[int], first: str) -> None:
    model = torchvision.models.get_model(name, weights=None).eval()
    layouts = map_layouts(model, name)
    names = usual_layers(model, layouts)
    assert [layouts[layer].stride for layer in names] == strides
    assert names[0] == first


def test_parts_have_one_stride_and_width_each() -> None:
    backbone = Backbone.from_model(_timm("resnet18"))
    parts = backbone.parts
    assert [part.numbers for part in parts] == [(1,), (2,), (3,), (4,), (5,)]
    assert [(part.patch_size, part.dim) for part in parts] == [(2, 64), (4, 64), (8, 128), (16, 256), (32, 512)]
    assert {part.weights_hash for part in parts} == {backbone.weights_hash}
    images = torch.randn(1, 3, 64, 64)
    assert torch.equal(parts[3].layers(images, [4])[4].tokens, backbone.layers(images, [4])[4].tokens)
    with pytest.raises(ValueError, match=r"blocks \[3\] must be one or more of 4..4"):
        parts[3].layers(images, [3])
    whole = Backbone.from_model(_timm("xcit_nano_12_p16_224"))
    assert whole.parts == (whole,)


def test_a_users_own_module_of_each_layout() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv2d(3, 6, 4, 4)
            self.last = nn.Identity()
            self.tokens = nn.Identity()
            self.cls = nn.Parameter(torch.ones(1, 1, 6))

        def forward(self, images: Tensor) -> Tensor:
            features = self.first(images)
            channels_last = self.last(features.permute(0, 2, 3, 1))
            cls = self.cls.expand(len(images), -1, -1)
            return self.tokens(torch.cat([cls, channels_last.flatten(1, 2)], 1)).mean(1)

    model = Own()
    backbone = Backbone.from_model(model, layers=["first", "last", "tokens"], image_size=32)
    images = torch.randn(2, 3, 32, 48)
    read = backbone.layers(images, [1, 2, 3])
    expected = model.first(images).flatten(2).mT
    for features in read.values():
        assert torch.equal(features.tokens, expected)
        assert features.grid == (8, 12)
        assert torch.allclose(features.cls, expected.mean(1), atol=1e-6)  # not every level has a class token
    alone = Backbone.from_model(model, layers=["tokens"], image_size=32).layers(images, [1])[1]
    assert alone.cls is not None
    assert torch.equal(alone.cls, torch.ones(2, 6))


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (["layer9"], "it has no layer 'layer9'"),
        (["fc"], "the output of layer 'fc' is no map of the image"),
        (["layer1", "layer1"], "layers are named twice"),
    ],
)
def test_wrong_layers_are_one_line(layers: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Backbone.from_model(torchvision.models.resnet18(weights=None), "own", layers=layers)


def test_sizes_facets_and_networks_that_do_not_fit_are_refused() -> None:
    backbone = Backbone.from_model(_timm("resnet18"), "resnet")
    with pytest.raises(ValueError, match="50×64 is not a multiple"):
        backbone.layers(torch.zeros(1, 3, 50, 64), [1])
    with pytest.raises(ConfigError, match="facet key is of plain ViTs"):
        backbone.layers(torch.zeros(1, 3, 64, 64), [1], facet="key")
    fixed = Backbone.from_model(_timm("cait_xxs24_224"), "cait", image_size=64)
    with pytest.raises(ValueError, match="image size 96×96: cait does not take it"):
        fixed.layers(torch.zeros(1, 3, 96, 96), [1])
    with pytest.raises(ConfigError, match="does not take an image of 224×224"):
        Backbone.from_model(nn.Linear(3, 3), "linear")


def test_norms() -> None:
    backbone = Backbone.from_model(_timm("resnet18"))
    images = torch.randn(1, 3, 64, 64)
    plain, final, layer = (backbone.layers(images, [4], norm=norm)[4].tokens for norm in ("none", "final", "layer"))
    assert torch.equal(plain, final)  # no norm of the network follows all levels
    assert torch.allclose(layer, nn.functional.layer_norm(plain, plain.shape[-1:], eps=1e-6))


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((1, 64, 56, 112), ("NCHW", 0, 4, 64)),
        ((1, 56, 112, 64), ("NHWC", 0, 4, 64)),
        ((1, 14 * 28, 384), ("tokens", 0, 16, 384)),
        ((1, 14 * 28 + 5, 384), ("tokens", 5, 16, 384)),
        ((1, 512), None),
        ((1, 64, 1, 1), None),
        ((1, 64, 55, 112), None),
    ],
)
def test_layouts(shape: tuple[int, ...], expected: tuple[object, ...] | None) -> None:
    layout = layout_of(shape, 224, 448)
    assert (layout and (layout.kind, layout.prefix, layout.stride, layout.width)) == expected
