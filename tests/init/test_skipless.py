"""Checks 1, 2, 5, 7, 9, 11-14, 21 of the mathematics document, on ViT-S shapes."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from dinoskip.diagnostics import vo_condition
from dinoskip.errors import ConfigError
from dinoskip.init import skipless_, trunc_normal_
from dinoskip.init.skipless import query_key_factors
from dinoskip.measures import condition_number
from dinoskip.models import create_model
from dinoskip.models.vit import head_factors

ROOT = 64**0.5


@pytest.fixture(scope="module")
def before() -> VisionTransformer:
    model = create_model("vit_small_patch16", skip=False, depth=2, img_size=32, num_classes=3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01)  # nothing is at a value that an initialiser might write by chance
    return model


@pytest.fixture(scope="module")
def small(before: VisionTransformer) -> VisionTransformer:
    model = create_model("vit_small_patch16", skip=False, depth=2, img_size=32, num_classes=3)
    model.load_state_dict(before.state_dict())
    assert skipless_(model) is model
    return model


@pytest.fixture(scope="module")
def default() -> VisionTransformer:
    model = create_model("vit_small_patch16", skip=False, depth=1, img_size=32)
    trunc_normal_(model, 0)
    return model


def factors(model: VisionTransformer, block: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return head_factors(model.blocks[block].attn)


def test_value_output_product_is_perfectly_conditioned(small: VisionTransformer, default: VisionTransformer) -> None:
    for block in small.blocks:
        _, _, value, output = head_factors(block.attn)
        assert float(vo_condition(block).kappa) == pytest.approx(1.0, abs=1e-4)
        values = torch.linalg.svdvals(value @ output)
        assert (values - 9.0).abs().max() < 1e-3
    assert float(vo_condition(default.blocks[0]).kappa) > 1e2


def test_value_and_output_are_scaled_orthogonal(small: VisionTransformer) -> None:
    _, _, value, output = factors(small)
    identity = torch.eye(384, dtype=torch.float64)
    assert (value.T @ value / 9 - identity).abs().max() < 1e-5
    assert (output @ output.T / 9 - identity).abs().max() < 1e-5
    assert not torch.allclose(value @ output / 9, identity, atol=0.5)  # a rotation, not the identity


def test_two_constants() -> None:
    model = create_model("vit_tiny_patch16", skip=False, depth=1, img_size=32)
    skipless_(model, c=(2.0, 0.5))
    _, _, value, output = factors(model)
    assert torch.allclose(torch.linalg.svdvals(value), torch.tensor(2.0, dtype=torch.float64), atol=1e-5)
    assert torch.allclose(torch.linalg.svdvals(output), torch.tensor(0.5, dtype=torch.float64), atol=1e-5)


def test_query_and_key_are_balanced(small: VisionTransformer) -> None:
    query, key, _, _ = factors(small)
    squares = query.mT @ query
    spectrum = squares.diagonal(dim1=-2, dim2=-1)
    assert (squares - torch.diag_embed(spectrum)).abs().max() < 1e-4
    assert (key.mT @ key - squares).abs().max() < 1e-4
    assert (spectrum.diff(dim=-1) < 0).all()
    product = query[0] @ key[0].T
    values = torch.linalg.svdvals(product)
    assert torch.allclose(values[:64], spectrum[0], rtol=1e-5)
    assert values[64] < 1e-5 * values[0]
    assert 3.85 < values[0] < 4.1  # free probability: 4.033 at the constants of ViT-S
    assert float(condition_number(query).kappa.median()) == pytest.approx(1.16, abs=0.01)


def test_query_key_product_is_the_truncated_noisy_identity() -> None:
    """Drawn again here from the same stream: W^Q W^Kᵀ is the best rank-dh approximation of alpha Z + beta I."""
    from dinoskip.init.orthogonal import noise_matrix
    from dinoskip.randomness import torch_rng

    query, key = query_key_factors(48, 3, 1.5, 0.8, heads="top", noise="normal", seed=4, name="n")
    for head in range(3):
        z = noise_matrix(48, "normal", torch_rng(4, "init", "n", "query_key", head))
        u, s, vh = torch.linalg.svd(1.5 * z + 0.8 * torch.eye(48, dtype=torch.float64))
        assert torch.allclose(query[head] @ key[head].T, u[:, :16] * s[:16] @ vh[:16], atol=1e-10)


@pytest.mark.parametrize(
    ("dim", "alpha", "beta", "noise", "diagonal", "spread"),
    [
        (384, 1.8, 1.0, "normal", 18.45, 3.41),
        (384, 1.8, 1.0, "uniform", 18.45, 3.41),
        (768, 2.0, 0.6, "normal", 14.0, 3.745),
        (192, 1.8, 1.0, "normal", 15.8, 3.05),
    ],
)
def test_logits(dim: int, alpha: float, beta: float, noise: Any, diagonal: float, spread: float) -> None:
    """Checks 7 and 14."""
    heads = dim // 64
    query, key = query_key_factors(dim, heads, alpha, beta, heads="top", noise=noise, seed=0, name="x")
    traces = (query * key).sum((-2, -1)) / ROOT
    norms = torch.linalg.matrix_norm(query @ key.mT) / ROOT
    assert float(traces.mean()) == pytest.approx(diagonal, abs=0.5)
    assert float(norms.mean()) == pytest.approx(spread, abs=0.1)


def test_default_logits_are_near_zero(default: VisionTransformer) -> None:
    query, key, _, _ = factors(default)
    assert ((query * key).sum((-2, -1)) / ROOT).abs().max() < 0.3


def test_heads_are_independent(small: VisionTransformer) -> None:
    query, _, _, _ = factors(small)
    overlaps = [float((query[i].T @ query[j]).abs().max()) for i in range(6) for j in range(i)]
    assert min(overlaps) > 1e-2  # a split of one matrix would give exactly orthogonal ranges
    products = torch.stack([query[i] @ factors(small)[1][i].T for i in range(6)])
    assert all(not torch.allclose(products[i], products[0], atol=0.1) for i in range(1, 6))


def test_split_heads_share_one_matrix() -> None:
    query, key = query_key_factors(96, 3, 1.8, 1.0, heads="split", noise="normal", seed=0, name="x")
    assert max(float((query[i].T @ query[j]).abs().max()) for i in range(3) for j in range(i)) < 1e-10
    whole = (query @ key.mT).sum(0)
    from dinoskip.init.orthogonal import noise_matrix
    from dinoskip.randomness import torch_rng

    z = noise_matrix(96, "normal", torch_rng(0, "init", "x", "query_key", "all"))
    assert torch.allclose(whole, 1.8 * z + torch.eye(96, dtype=torch.float64), atol=1e-10)


def test_mlp_gains(small: VisionTransformer) -> None:
    fc1, fc2 = (small.blocks[0].mlp.get_submodule(n).weight.double() for n in ("fc1", "fc2"))
    assert torch.allclose(torch.linalg.svdvals(fc1), torch.tensor(2.0, dtype=torch.float64), atol=1e-5)
    assert torch.allclose(torch.linalg.svdvals(fc2), torch.tensor(1.0, dtype=torch.float64), atol=1e-5)


def test_mlp_options() -> None:
    model = create_model("vit_tiny_patch16", skip=False, depth=1, img_size=32)
    start = model.blocks[0].mlp.fc1.weight.clone()
    skipless_(model, mlp="default")
    assert torch.equal(model.blocks[0].mlp.fc1.weight, start)
    skipless_(model, mlp="orthogonal")
    for name in ("fc1", "fc2"):
        values = torch.linalg.svdvals(model.blocks[0].mlp.get_submodule(name).weight.double())
        assert torch.allclose(values, torch.ones((), dtype=torch.float64), atol=1e-5)


def test_the_rest_is_untouched(before: VisionTransformer, small: VisionTransformer) -> None:
    changed = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
    after = small.state_dict()
    for name, tensor in before.state_dict().items():
        inside = any(part in name for part in changed)
        assert torch.equal(after[name], tensor) is (not inside), name
        if inside and name.endswith("bias"):
            assert (after[name] == 0).all()
    timm.create_model("vit_small_patch16_224", depth=2, img_size=32, num_classes=3).load_state_dict(after, strict=True)


def test_same_seed_same_bits_whatever_the_default_dtype() -> None:
    def weights(seed: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
        torch.manual_seed(seed + 17)
        model = create_model("vit_tiny_patch16", skip=False, depth=2, img_size=32).to(dtype)
        skipless_(model, seed=seed)
        return [block.attn.qkv.weight.detach() for block in model.blocks]

    first, again = weights(0), weights(0)
    torch.set_default_dtype(torch.float64)
    try:
        double = weights(0, torch.float32)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[0], double[0])
    assert torch.equal(first[0].bfloat16(), weights(0, torch.bfloat16)[0])
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[0], weights(1)[0])


def test_low_precision_keeps_the_conditioning() -> None:
    model = create_model("vit_small_patch16", skip=False, depth=1, img_size=32).bfloat16()
    skipless_(model)
    assert float(vo_condition(model.blocks[0]).kappa) < 1.02


def attention_matrices(model: VisionTransformer) -> Tensor:
    tokens = torch.randn(1, 256, 384, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x = torch.nn.functional.layer_norm(tokens, (384,))
    query, key, _, _ = factors(model)
    return ((x @ query) @ (x @ key).mT / ROOT).softmax(-1)  # (heads, n, n)


def test_attention_on_gaussian_tokens_is_diagonal(small: VisionTransformer, default: VisionTransformer) -> None:
    """Check 21."""
    ours, plain = attention_matrices(small), attention_matrices(default)
    diagonal = torch.arange(256)
    assert (ours.argmax(-1) == diagonal).double().mean() >= 0.97
    assert (plain.argmax(-1) == diagonal).double().mean() < 0.02
    assert ours.diagonal(dim1=-2, dim2=-1).mean() >= 0.95
    assert plain.diagonal(dim1=-2, dim2=-1).mean() < 0.01
    assert condition_number(ours).kappa.median() < 30
    assert condition_number(plain).kappa.median() > 1e3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"qk_norm": True}, "block 1: its attention is not plain"),
        ({"scale_attn_norm": True}, "block 1: its attention is not plain"),
        ({"attn_layer": "diff"}, "block 1: its attention is not plain"),
        ({"init_values": 0.1}, "block 1: it has LayerScale"),
        ({"scale_mlp_norm": True}, "its MLP is not two plain linear layers"),
        ({"mlp_layer": timm.layers.SwiGLU}, "its MLP is not two plain linear layers"),
    ],
)
def test_models_outside_the_paper_are_refused_and_left_alone(options: dict[str, Any], message: str) -> None:
    model = timm.create_model("vit_tiny_patch16_224", depth=1, img_size=32, num_classes=0, **options)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(ConfigError, match=message):
        skipless_(model)
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


def test_other_modules_and_options_are_refused() -> None:
    with pytest.raises(ConfigError, match="not a Linear"):
        skipless_(torch.nn.Linear(2, 2))
    with pytest.raises(ConfigError, match="it is a ParallelThingsBlock"):
        skipless_(timm.create_model("vit_small_patch16_18x2_224", depth=1, img_size=32))
    with pytest.raises(ConfigError, match="heads: top, split"):
        skipless_(create_model("vit_tiny_patch16", depth=1, img_size=32), heads="all")  # type: ignore[arg-type]
