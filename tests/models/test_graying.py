"""Token Graying (Always Skip Attention, sec. 5); its effect on condition numbers is in tests/conformance."""

from __future__ import annotations

from typing import Any

import pytest
import scipy.fft
import timm
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dinoskip.errors import ConfigError
from dinoskip.models import TokenGraying, create_model
from dinoskip.models.graying import dct_graying, images_of, patches, svd_graying


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


@pytest.mark.parametrize("method", ["svd", "dct"])
def test_one_is_the_identity_and_less_is_not(method: Any) -> None:
    x = images(2, 3, 32, 48)
    assert torch.allclose(TokenGraying(16, method, 1.0)(x), x, atol=1e-12)
    assert (TokenGraying(16, method)(x) - x).abs().max() > 1e-3


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


@pytest.mark.parametrize("method", ["svd", "dct"])
def test_black_and_flat_images_stay_finite(method: Any) -> None:
    graying = TokenGraying(8, method, 0.5)
    assert torch.equal(graying(torch.zeros(1, 3, 16, 16)), torch.zeros(1, 3, 16, 16))
    flat = torch.full((1, 3, 16, 16), 0.7)
    assert torch.allclose(graying(flat), flat, atol=0.1)  # rounding noise of rank-one tokens is amplified too


@pytest.mark.parametrize("method", ["svd", "dct"])
def test_low_precision_is_computed_in_single(method: Any) -> None:
    x = images(1, 3, 32, 32)
    graying = TokenGraying(8, method)
    exact = graying(x.float())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(graying(x.float()), exact)
    half = graying(x.bfloat16())
    assert half.dtype == torch.bfloat16
    assert (half.float() - exact).abs().max() < 0.05
    assert graying(x).dtype == torch.float64


def test_attached_before_any_patch_embedding() -> None:
    model = create_model("vit_tiny_patch8", skip=False, depth=1, img_size=16).eval()
    x = images(2, 3, 16, 24).float()
    plain, graying = model(x), TokenGraying(8, "dct")
    handle = graying.attach(model)
    attached = model(x)
    assert torch.equal(attached, nn.Sequential(graying, create_model_like(model))(x))
    assert not torch.allclose(attached, plain)
    attached.sum().backward()
    assert model.patch_embed.proj.weight.grad is not None
    handle.remove()
    assert torch.equal(model(x), plain)
    swin = timm.create_model("swin_tiny_patch4_window7_224", embed_dim=12, depths=(1, 1), num_heads=(1, 1))
    TokenGraying(4, "dct").attach(swin)
    assert swin(torch.randn(1, 3, 224, 224)).isfinite().all()


def create_model_like(model: Any) -> Any:
    other = create_model("vit_tiny_patch8", skip=False, depth=1, img_size=16).eval()
    other.load_state_dict(model.state_dict(), strict=True)  # graying adds nothing to a weights file
    return other


def test_wrong_use() -> None:
    for eps in (0.0, 1.1, -1.0, float("nan")):
        with pytest.raises(ConfigError, match=r"is not in \(0, 1\]"):
            TokenGraying(8, eps=eps)
    with pytest.raises(ConfigError, match="method 'fft' is none of svd, dct"):
        TokenGraying(8, "fft")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="patch_size=0"):
        TokenGraying(0)
    with pytest.raises(ConfigError, match=r"patch_size=16, but the model's patches are \(8, 8\)"):
        TokenGraying(16).attach(create_model("vit_tiny_patch8", depth=1, img_size=16))
    with pytest.raises(ConfigError, match="a Linear has no patch_embed"):
        TokenGraying(16).attach(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="images of 16×20 pixels are not whole patches of 8"):
        TokenGraying(8)(torch.zeros(1, 3, 16, 20))
