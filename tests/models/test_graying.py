"""Token Graying (Always Skip Attention, sec. 5); its effect on condition numbers is in tests/conformance."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import scipy.fft
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dinoskip.errors import ConfigError
from dinoskip.init import ModelConfig, build_model
from dinoskip.models import GrayingConfig, TokenGraying, VitConfig, create_model, load_backbone, save_weights
from dinoskip.models.graying import dct_graying, images_of, patches, svd_graying
from dinoskip.settings.config import Config, RawConfig, dump, validate


def images(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@settings(max_examples=20, deadline=None)
@given(rows=st.integers(1, 4), columns=st.integers(1, 4), patch=st.integers(1, 6), channels=st.integers(1, 4))
def test_patches_and_back(rows: int, columns: int, patch: int, channels: int) -> None:
    given_images = images(2, channels, rows * patch, columns * patch)
    tokens = patches(given_images, patch)
    assert tokens.shape == (2, rows * columns, channels * patch**2)
    assert torch.equal(images_of(tokens, given_images.shape, patch), given_images)


def test_patches_are_flattened_as_the_patch_embedding_sees_them() -> None:
    embedding = create_model("vit_tiny_patch8", depth=1, img_size=32).patch_embed.proj.double()
    x = images(2, 3, 16, 24)
    tokens = patches(x, 8) @ embedding.weight.flatten(1).T + embedding.bias
    assert torch.allclose(tokens, embedding(x).flatten(2).transpose(1, 2), atol=1e-12)


@pytest.mark.parametrize("kind", ["svd", "dct"])
def test_one_is_the_identity_and_less_is_not(kind: Any) -> None:
    x = images(2, 3, 32, 48)
    assert torch.allclose(TokenGraying(16, kind, 1.0)(x), x, atol=1e-12)
    assert (TokenGraying(16, kind)(x) - x).abs().max() > 1e-3


def test_dct_is_scipys() -> None:
    tokens = images(2, 6, 10) - 0.5
    coefficients = scipy.fft.dctn(tokens.numpy(), axes=(1, 2), norm="ortho")
    largest = abs(coefficients).max((1, 2), keepdims=True)
    amplified = largest * (abs(coefficients) / largest) ** 0.7
    signed = amplified * (2 * (coefficients > 0) - 1)
    expected = torch.from_numpy(scipy.fft.idctn(signed, axes=(1, 2), norm="ortho"))
    assert torch.allclose(dct_graying(tokens, 0.7), expected, atol=1e-12)


@pytest.mark.parametrize("function", [svd_graying, dct_graying])
def test_images_of_a_batch_do_not_meet(function: Any) -> None:
    tokens = images(3, 9, 12)
    alone = torch.stack([function(image[None], 0.8)[0] for image in tokens])
    assert torch.allclose(function(tokens, 0.8), alone, atol=1e-12)


@pytest.mark.parametrize("kind", ["svd", "dct"])
def test_black_and_flat_images_stay_finite(kind: Any) -> None:
    graying = TokenGraying(8, kind, 0.5)
    assert torch.equal(graying(torch.zeros(1, 3, 16, 16)), torch.zeros(1, 3, 16, 16))
    flat = torch.full((1, 3, 16, 16), 0.7)
    assert torch.allclose(graying(flat), flat, atol=0.1)  # rounding noise of rank-one tokens is amplified too


@pytest.mark.parametrize("kind", ["svd", "dct"])
def test_low_precision_is_computed_in_single(kind: Any) -> None:
    x = images(1, 3, 32, 32)
    graying = TokenGraying(8, kind)
    exact = graying(x.float())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(graying(x.float()), exact)
    half = graying(x.bfloat16())
    assert half.dtype == torch.bfloat16
    assert (half.float() - exact).abs().max() < 0.05
    assert graying(x).dtype == torch.float64


@pytest.mark.parametrize("kind", ["svd", "dct"])
def test_a_model_with_graying_is_graying_and_then_the_model(kind: Any) -> None:
    model = create_model("vit_tiny_patch8", skip=False, depth=1, img_size=16).eval()
    graying = GrayingConfig(kind=kind, epsilon=0.8)
    built = create_model("vit_tiny_patch8", skip=False, depth=1, img_size=16, graying=graying).eval()
    built.load_state_dict(model.state_dict(), strict=True)  # graying adds nothing to a weights file
    x = images(2, 3, 16, 24).float()
    assert torch.equal(built(x), nn.Sequential(TokenGraying(8, kind, 0.8), model)(x))
    assert not torch.allclose(built(x), model(x))
    built(x).sum().backward()
    assert built.patch_embed.proj.weight.grad is not None


def test_a_copy_is_grayed_too() -> None:
    model = create_model("vit_tiny_patch8", depth=1, img_size=16, graying=GrayingConfig()).eval()
    x = images(1, 3, 16, 16).float()
    assert torch.equal(copy.deepcopy(model)(x), model(x))


def test_recorded_with_the_weights_and_applied_when_they_are_loaded(tmp_path: Path) -> None:
    config = ModelConfig(name="vit_tiny_patch8", depth=2, img_size=16, graying=GrayingConfig(epsilon=0.7))
    model = build_model(config, seed=0).eval()
    save_weights(tmp_path / "w.safetensors", model.state_dict(), config, {})
    backbone = load_backbone(f"weights:{tmp_path / 'w.safetensors'}")
    x = images(2, 3, 16, 24).float()
    features = backbone.layers(x, [2], norm="final")[2].tokens
    assert torch.equal(features, model.forward_features(x)[:, 1:])
    plain = build_model(config.model_copy(update={"graying": None}), seed=0).eval()
    assert not torch.allclose(features, plain.forward_features(x)[:, 1:], atol=1e-3)


def test_models_without_graying_are_written_as_before() -> None:
    """Content keys and the headers of weights files of models without graying do not change."""
    assert dump(VitConfig()) == {"name": "vit_small_patch16", "skip": True, "depth": None, "img_size": 224}
    assert "graying" not in dump(ModelConfig())
    assert "graying" not in Holder(model=ModelConfig()).model_dump(mode="json")["model"]
    grayed = ModelConfig(graying=GrayingConfig(kind="svd"))
    assert dump(grayed)["graying"] == {"kind": "svd", "epsilon": 0.95}
    assert ModelConfig.model_validate(dump(grayed)) == grayed


class Holder(Config):
    model: ModelConfig


def test_the_setting_is_checked() -> None:
    with pytest.raises(ConfigError, match=r"graying.epsilon: .*less than or equal to 1, was given 1.5"):
        validate(ModelConfig, RawConfig({"graying": {"epsilon": 1.5}}))
    with pytest.raises(ConfigError, match=r"graying.kind: 'fft' is none of svd, dct"):
        validate(ModelConfig, RawConfig({"graying": {"kind": "fft"}}))


def test_wrong_use() -> None:
    for epsilon in (0.0, 1.1, -1.0, float("nan")):
        with pytest.raises(ConfigError, match=r"is not in \(0, 1\]"):
            TokenGraying(8, epsilon=epsilon)
    with pytest.raises(ConfigError, match="kind 'fft' is none of svd, dct"):
        TokenGraying(8, "fft")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="patch_size=0"):
        TokenGraying(0)
    with pytest.raises(ValueError, match="images of 16×20 pixels are not whole patches of 8"):
        TokenGraying(8)(torch.zeros(1, 3, 16, 20))
