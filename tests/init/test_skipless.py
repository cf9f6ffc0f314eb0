"""Options, determinism and refusals; what the paper claims of the weights is in tests/conformance."""

from __future__ import annotations

import inspect
import math
from typing import Any

import pytest
import timm
import torch
from torch import Tensor

from dinoskip.diagnostics import bundled_photos
from dinoskip.errors import ConfigError
from dinoskip.init import ModelConfig, build_model, skipless_
from dinoskip.init.config import SCALES, Scale, SkiplessInit
from dinoskip.init.orthogonal import noise_matrix
from dinoskip.init.skipless import folded_scale, noisy_identity, query_key_factors
from dinoskip.models import create_model
from dinoskip.models.attention_sites import head_factors
from dinoskip.models.rank_collapse import token_cosine
from dinoskip.runtime.randomness import torch_rng
from dinoskip.settings.keys import settings_for_key


def test_two_constants() -> None:
    model = create_model("vit_tiny_patch16", skip=False, depth=1, img_size=32)
    skipless_(model, c=(2.0, 0.5))
    _, _, value, output = head_factors(model.blocks[0].attn)
    assert torch.allclose(torch.linalg.svdvals(value), torch.tensor(2.0, dtype=torch.float64), atol=1e-5)
    assert torch.allclose(torch.linalg.svdvals(output), torch.tensor(0.5, dtype=torch.float64), atol=1e-5)


def test_query_key_product_is_the_truncated_noisy_identity() -> None:
    """Drawn again here from the same stream: W^Q W^Kᵀ is the best rank-dh approximation of alpha Z + beta I."""
    query, key = query_key_factors(48, 3, noisy_identity(48, 1.5, 0.8, "normal", 4, "n"))
    for head in range(3):
        z = noise_matrix(48, "normal", torch_rng(4, "init", "n", "query_key", head))
        u, s, vh = torch.linalg.svd(1.5 * z + 0.8 * torch.eye(48, dtype=torch.float64))
        assert torch.allclose(query[head] @ key[head].T, u[:, :16] * s[:16] @ vh[:16], atol=1e-10)


def test_split_heads_share_one_matrix() -> None:
    query, key = query_key_factors(96, 3, noisy_identity(96, 1.8, 1.0, "normal", 0, "x"), split=True)
    assert max(float((query[i].T @ query[j]).abs().max()) for i in range(3) for j in range(i)) < 1e-10
    whole = (query @ key.mT).sum(0)
    z = noise_matrix(96, "normal", torch_rng(0, "init", "x", "query_key", "all"))
    assert torch.allclose(whole, 1.8 * z + torch.eye(96, dtype=torch.float64), atol=1e-10)


def test_mlp_options() -> None:
    model = create_model("vit_tiny_patch16", skip=False, depth=1, img_size=32)
    start = model.blocks[0].mlp.fc1.weight.clone()
    skipless_(model, mlp="default")
    assert torch.equal(model.blocks[0].mlp.fc1.weight, start)
    skipless_(model, mlp="orthogonal")
    for name in ("fc1", "fc2"):
        values = torch.linalg.svdvals(model.blocks[0].mlp.get_submodule(name).weight.double())
        assert torch.allclose(values, torch.ones((), dtype=torch.float64), atol=1e-5)


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
    with pytest.raises(ConfigError, match="skipless_ initialises attention, and a Linear has none"):
        skipless_(torch.nn.Linear(2, 2))
    with pytest.raises(ConfigError, match="it is a ParallelThingsBlock"):
        skipless_(timm.create_model("vit_small_patch16_18x2_224", depth=1, img_size=32))
    with pytest.raises(ConfigError, match="heads: 'all' is none of top, split"):
        skipless_(create_model("vit_tiny_patch16", depth=1, img_size=32), heads="all")  # type: ignore[arg-type]


def test_draws_of_value_and_output_differ_and_are_both_orthogonal() -> None:
    products = []
    for draw in ("svd", "haar"):
        model = create_model("vit_tiny_patch16", skip=False, depth=1, img_size=32)
        skipless_(model, draw=draw)  # type: ignore[arg-type]
        _, _, value, output = head_factors(model.blocks[0].attn)
        products.append(value @ output)
        assert torch.allclose(products[-1] @ products[-1].T, 81 * torch.eye(192, dtype=torch.float64), atol=1e-3)
    assert not torch.allclose(*products, atol=0.1)


@pytest.mark.parametrize(("heads", "width"), [(1, 48), (2, 24), (8, 6)])
def test_any_head_count(heads: int, width: int) -> None:
    model = create_model("vit_tiny_patch16", skip=False, depth=1, img_size=32, embed_dim=48, num_heads=heads)
    skipless_(model)
    query, key, value, output = head_factors(model.blocks[0].attn)
    assert query.shape == (heads, 48, width)
    squares = query.mT @ query
    assert torch.allclose(squares, torch.diag_embed(squares.diagonal(dim1=-2, dim2=-1)), atol=1e-4)
    assert torch.allclose(squares, key.mT @ key, atol=1e-4)
    assert torch.allclose(torch.linalg.svdvals(value @ output), torch.tensor(9.0, dtype=torch.float64), atol=1e-3)


def test_a_network_with_skips_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING", "dinoskip"):
        for skip in (False, "attention", "mlp"):
            skipless_(create_model("vit_tiny_patch8", skip=skip, depth=1, img_size=16))
        assert not caplog.records
        skipless_(create_model("vit_tiny_patch8", depth=1, img_size=16))
    assert "has all its skip connections" in caplog.text


def late_cosine(seed: int, size: int, **model: Any) -> float:
    """Mean cosine between tokens of a photograph after the last norm of a fresh network."""
    fresh = build_model(ModelConfig(**model, skip=False, img_size=size), seed)
    with torch.no_grad():
        return token_cosine(fresh.forward_features(bundled_photos(4, size).float()).double())


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_late_tokens_of_a_narrow_network_are_apart_if_beta_is_of_vit_s(seed: int) -> None:
    """Late tokens of ViT-S/16 at 224 pixels are apart (0.96 to 0.99 over four seeds), at width 128 and beta 1 alike."""
    narrow: dict[str, Any] = {"name": "vit_mini_patch8", "seed": seed, "size": 48}
    wide = late_cosine(seed, 224, name="vit_small_patch16", init=SkiplessInit())  # at beta_width=384, too: below
    assert late_cosine(**narrow, init=SkiplessInit()) > 0.9999
    assert 0.85 < late_cosine(**narrow, init=SkiplessInit(beta_width=384)) <= wide < 0.995


@pytest.mark.parametrize(
    ("name", "width", "beta"),
    [
        ("mini", 128, 2.247),
        ("tiny", 192, 5 / 3),
        ("small", 384, 1.0),
        pytest.param("base", 768, 0.6, marks=pytest.mark.slow),
    ],
)
def test_beta_of_a_width_is_the_formula(name: str, width: int, beta: float) -> None:
    models = [create_model(f"vit_{name}_patch16", skip=False, depth=1, img_size=32) for _ in range(2)]
    skipless_(models[0], beta_width=384)
    skipless_(models[1], beta=(384 / width) ** (math.log(1 / 0.6) / math.log(2)))
    assert (384 / width) ** math.log2(5 / 3) == pytest.approx(beta, abs=5e-4)
    weights = [model.blocks[0].attn.qkv.weight for model in models]
    torch.testing.assert_close(*weights, rtol=1e-4, atol=1e-6)


def test_beta_width_is_recorded_where_it_is_set() -> None:
    plain, scaled = SkiplessInit(), SkiplessInit(beta_width=384)
    assert "beta_width" not in settings_for_key(plain)
    assert settings_for_key(scaled)["beta_width"] == 384


# --- the factor before Q Kᵀ --------------------------------------------------------------------------

FACTORS: dict[Scale, float] = {"head": 16**-0.5, "none": 1.0, "width": 48**-0.5}
"""Of the logits of three heads of width 16."""


def of_scale(scale: Scale, **options: Any) -> Any:
    model = create_model("vit_tiny_patch16", skip=False, depth=1, img_size=32, embed_dim=48, num_heads=3).double()
    skipless_(model, scale=scale, seed=3, **options)
    return model.blocks[0].attn


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("fused", [True, False])
def test_any_plain_attention_computes_with_the_scale(scale: Scale, fused: bool) -> None:
    """The start's logits are the scale times x M_i xᵀ, M_i of the scale "head", by attention that divides by √dh."""
    ours, plain = of_scale(scale), timm.models.vision_transformer.Attention(48, 3, qkv_bias=True).double()
    plain.load_state_dict(ours.state_dict())
    plain.fused_attn = fused
    query, key, value, output = head_factors(of_scale("head"))
    x = torch.randn(2, 9, 48, dtype=torch.float64, generator=torch_rng(0, "tokens"))
    logits = FACTORS[scale] * torch.einsum("bnd,hde,hce,bmc->bhnm", x, query, key, x)
    mixed = logits.softmax(-1) @ (x @ value).reshape(2, 9, 3, 16).transpose(1, 2)
    expected = mixed.transpose(1, 2).flatten(2) @ output
    torch.testing.assert_close(plain(x), expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(ours(x), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("scale", SCALES)
def test_values_and_outputs_are_those_of_any_scale(scale: Scale) -> None:
    state, head = of_scale(scale).state_dict(), of_scale("head").state_dict()
    assert torch.equal(state["qkv.weight"][96:], head["qkv.weight"][96:])
    assert all(torch.equal(state[name], head[name]) for name in state if name != "qkv.weight")
    ratio = (FACTORS[scale] / FACTORS["head"]) ** 0.5
    assert folded_scale(scale, 48, 3) == pytest.approx(ratio, rel=1e-12)
    torch.testing.assert_close(state["qkv.weight"][:96], ratio * head["qkv.weight"][:96], rtol=1e-12, atol=0)


@pytest.mark.parametrize("scale", SCALES)
def test_what_an_optimizer_sees_of_a_folded_scale(scale: Scale) -> None:
    """The gradient of W^Q is 1/g of that with the factor in the attention, its logits' change by a fixed step, too."""
    g, factor = folded_scale(scale, 48, 3), FACTORS[scale]
    x = torch.randn(9, 48, dtype=torch.float64, generator=torch_rng(1, "tokens"))
    target = torch.randn(9, 9, dtype=torch.float64, generator=torch_rng(2, "target"))
    step = torch.randn(48, 16, dtype=torch.float64, generator=torch_rng(3, "step"))
    gradients, changes = [], []
    for attention, before in ((of_scale(scale), 16**-0.5), (of_scale("head"), factor)):
        query, key, _, _ = head_factors(attention)
        first = query[0].clone().requires_grad_()
        logits = before * (x @ first) @ (x @ key[0]).T
        gradients += torch.autograd.grad((logits.softmax(-1) * target).sum(), first)
        changes.append(before * (x @ step) @ (x @ key[0]).T)
    torch.testing.assert_close(gradients[0], gradients[1] / g, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(changes[0], changes[1] / g, rtol=1e-9, atol=1e-12)


def test_scale_is_recorded_where_it_is_set() -> None:
    """Trainings that were made before there was the setting keep their keys."""
    assert "scale" not in settings_for_key(SkiplessInit())
    assert settings_for_key(SkiplessInit(scale="none"))["scale"] == "none"
    assert inspect.signature(skipless_).parameters["scale"].default == "head"
    with pytest.raises(ConfigError, match="scale: 'one' is none of head, none, width"):
        skipless_(create_model("vit_tiny_patch16", depth=1, img_size=32), scale="one")  # type: ignore[arg-type]
