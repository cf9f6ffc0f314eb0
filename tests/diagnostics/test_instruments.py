"""Every instrument against brute force on small networks."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from timm.layers import Attention
from torch.nn import functional as F

from dinoskip.diagnostics import (
    Moments,
    StreamingCKA,
    analyze_blocks,
    attention_measures,
    block_activations,
    cka_between,
    condition_number,
    distortions,
    drift,
    fake_quantise,
    gradient_norms,
    input_jacobian,
    linear_cka,
    norm_outliers,
    quantised,
    query_key_spectrum,
    query_key_trace,
    rankme,
    stable_rank,
    weight_jacobian,
)
from dinoskip.diagnostics.block_analysis import BlockAnalysisConfig
from dinoskip.init import skipless_
from dinoskip.init.orthogonal import haar
from dinoskip.models import Backbone, create_model, load_backbone
from dinoskip.models.vit import head_factors
from dinoskip.randomness import torch_rng
from tests.helpers.dino_modules import Dino


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch_rng(seed, "instruments"))


def network(skip: bool = True, **kw: object) -> Backbone:
    torch.manual_seed(0)
    model = create_model("vit_tiny_patch16", skip=skip, depth=2, img_size=48, embed_dim=24, num_heads=3, **kw)
    return Backbone.from_model(model.double())


IMAGES = randn(2, 3, 48, 48, seed=9)


@pytest.mark.parametrize(
    "options", [{}, {"qk_norm": True}, {"init_values": 0.1}, {"class_token": False, "global_pool": "avg"}]
)
def test_a_trace_is_the_pass_itself(options: dict[str, object]) -> None:
    backbone = network(**options)
    with torch.no_grad():
        found = list(block_activations(backbone.model, IMAGES))
        assert torch.equal(backbone.model.norm(found[-1].output), backbone.model.forward_features(IMAGES))
        for block in found:
            assert block.attended is not None
            assert block.mixed is not None
            assert block.middle is not None
            torch.testing.assert_close(block.inputs + block.attended, block.middle)
            torch.testing.assert_close(block.middle + block.mixed, block.output)
            query = block.query_key()
            assert query is not None
            keys = backbone.layers(IMAGES, [block.number], facet="key")[block.number].tokens
            prefix = backbone.num_prefix_tokens
            torch.testing.assert_close(query[1].transpose(1, 2).flatten(2)[:, prefix:], keys)
    assert not any(module._forward_hooks for module in backbone.model.modules()), "no hook is left"


def test_attention_measures() -> None:
    backbone = network()
    found = next(block_activations(backbone.model, IMAGES))
    pair, attention = found.query_key(), found.attention
    assert pair is not None
    assert attention is not None
    exact = (pair[0] @ pair[1].mT / 8**0.5).softmax(-1)
    got = attention_measures(found, images=2, heads=3)
    assert got is not None
    assert got.diagonal == pytest.approx(float(exact.diagonal(dim1=2, dim2=3).mean()))
    assert got.entropy == pytest.approx(float(-(exact * exact.log()).sum(-1).mean()) / math.log(10))
    assert got.kappa == pytest.approx(condition_number(exact).kappa.quantile(0.5, dim=0).tolist())
    assert attention_measures(found, heads=0).kappa == ()  # type: ignore[union-attr]


def test_query_key_products_without_forming_them() -> None:
    backbone = network()
    block = backbone.model.blocks[0]
    query, key, _, _ = head_factors(block.attn)
    products = query @ key.mT
    torch.testing.assert_close(query_key_spectrum(block), torch.linalg.svdvals(products)[:, :8])
    torch.testing.assert_close(query_key_trace(block), products.diagonal(dim1=1, dim2=2).sum(1))


def test_drift() -> None:
    assert drift(3 * haar(20, 12, torch_rng(0))) < 1e-12
    assert drift(torch.diag(torch.tensor([1.0, 1.0, 2.0])).double()) == pytest.approx(1.0)


@pytest.mark.parametrize("skip", [False, True])
def test_lanczos_brackets_the_exact_extremes(skip: bool) -> None:
    attention = network().model.blocks[0].attn
    x = F.layer_norm(randn(10, 24), (24,))
    exact = input_jacobian(attention, x, skip=skip)
    assert exact.exact
    short = input_jacobian(attention, x, skip=skip, steps=20, exact_up_to=0)
    assert not short.exact
    assert short.largest <= exact.largest * (1 + 1e-12)
    assert exact.largest - short.largest <= short.largest_error + 1e-12
    assert short.smallest >= exact.smallest * (1 - 1e-9)
    assert short.kappa <= exact.kappa * (1 + 1e-9)
    full = input_jacobian(attention, x, skip=skip, steps=240, exact_up_to=0)
    assert full.smallest == pytest.approx(exact.smallest, rel=1e-4)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 50), count=st.integers(2, 11))
def test_weight_jacobian_is_that_of_autograd(seed: int, count: int) -> None:
    attention = network().model.blocks[0].attn
    torch.nn.init.normal_(attention.qkv.weight, std=0.3, generator=torch_rng(seed))
    query, key, value, _ = head_factors(attention)
    x, root = randn(count, 24, seed=seed), 8**-0.25

    def output(*weights: torch.Tensor) -> torch.Tensor:
        q, k, v = weights
        return (x @ q @ k.T @ x.T).softmax(-1) @ x @ v

    weights = (query[1] * root, key[1] * root, value[:, 8:16])
    parts = torch.func.jacrev(output, argnums=(0, 1, 2))(*weights)
    values = torch.linalg.svdvals(torch.cat([part.reshape(count * 8, -1) for part in parts], 1))
    assert weight_jacobian(attention, x, head=1).kappa == pytest.approx(float(values[0] / values[-1]), rel=1e-6)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 50), count=st.integers(2, 12), scales=st.tuples(*[st.floats(-3, 3)] * 3))
def test_the_ceiling_of_the_weight_jacobian_holds_at_every_scale(
    seed: int, count: int, scales: tuple[float, ...]
) -> None:
    attention = network().model.blocks[0].attn
    with torch.no_grad():
        for part, scale in zip(attention.qkv.weight.chunk(3), scales, strict=True):
            part.normal_(std=0.1 * 10**scale, generator=torch_rng(seed, scale.hex()))
    tokens = randn(count, 24, seed=seed + 1) + randn(1, 24, seed=seed + 2)
    found = weight_jacobian(attention, tokens)
    assert 1 <= found.kappa <= found.ceiling * (1 + 1e-9)


def test_theorem_3_1_fails_where_values_are_large() -> None:
    """Its bound ignores the scale of W_V, but the blocks of W_Q and W_K grow with it and never have full row rank."""
    attention = Attention(2, num_heads=1, qkv_bias=False).double()
    eye, found = torch.eye(2, dtype=torch.float64), {}
    for scale in (1, 10, 100):
        with torch.no_grad():
            attention.qkv.weight.copy_(torch.cat([eye * 2**0.25, eye * 2**0.25, eye * scale]))  # q·k over √2
        found[scale] = weight_jacobian(attention, eye)
        assert found[scale].bound == pytest.approx(2 + (math.e + 1) / (math.e - 1))
    assert found[1].kappa < found[1].bound < found[10].kappa < found[10].ceiling
    assert found[100].kappa == pytest.approx(10 * found[10].kappa, rel=0.05)


def test_weight_jacobian_of_alike_tokens_is_rank_deficient() -> None:
    attention = network().model.blocks[0].attn
    found = weight_jacobian(attention, randn(1, 24).expand(5, -1))
    assert found.kappa > 1e14
    assert found.ceiling == found.bound == 1 / torch.finfo(torch.float64).eps
    with pytest.raises(ValueError, match="25 tokens are more than their 24 channels"):
        weight_jacobian(attention, randn(25, 24))


def test_gradient_norms_are_those_of_backward() -> None:
    backbone = network()
    rows = gradient_norms(backbone, IMAGES)
    assert all(parameter.grad is None for parameter in backbone.model.parameters())
    assert set(rows[0]) == {"block", "query", "key", "value", "output", "fc1", "fc2"}
    assert all(value > 0 for row in rows for value in row.values())
    assert all(
        math.hypot(*(row[part] for part in row if part != "block")) == pytest.approx(row["block"]) for row in rows
    )


@settings(deadline=None)
@given(st.lists(st.integers(1, 30), min_size=2, max_size=5), st.floats(-1e3, 1e3))
def test_moments_merge_exactly(sizes: list[int], shift: float) -> None:
    x = randn(sum(sizes), 3, seed=len(sizes)).exp() + shift
    parts = [Moments.of(part, per_channel=True) for part in x.split(sizes)]
    merged, whole = sum(parts[1:], parts[0]), Moments.of(x, per_channel=True)
    for name in ("mean", "m2", "m3", "m4"):
        torch.testing.assert_close(getattr(merged, name), getattr(whole, name), rtol=1e-7, atol=1e-6)


@settings(deadline=None)
@given(st.integers(2, 12), st.floats(0.01, 100), st.floats(-5, 5))
def test_fake_quantisation_rounds_to_levels(bits: int, scale: float, shift: float) -> None:
    x = randn(200) * scale + shift
    low, high = x.min(), x.max()
    rounded = fake_quantise(x, bits, low, high)
    step = (high - low) / (2**bits - 1)
    assert float((x - rounded).abs().max()) <= float(step) * 1.0001  # half a step, and half one of the zero point
    assert len(rounded.unique()) <= 2**bits
    torch.testing.assert_close(fake_quantise(rounded, bits, low, high), rounded)


def test_a_constant_survives_quantisation() -> None:
    x = torch.full((4,), 2.5)
    assert torch.equal(fake_quantise(x, 8, x.min(), x.max()), x)


def test_quantised_networks_approach_the_original() -> None:
    backbone = network()
    exact = backbone.layers(IMAGES, [2])[2].tokens
    errors = []
    for bits in (4, 8, 12):
        found = quantised(backbone, bits, bits, IMAGES).layers(IMAGES, [2])[2].tokens
        errors.append(float((found - exact).norm() / exact.norm()))
    assert errors[0] > 4 * errors[1] > 16 * errors[2] > 0
    assert torch.equal(quantised(backbone, None, None, IMAGES).layers(IMAGES, [2])[2].tokens, exact)
    assert torch.equal(backbone.layers(IMAGES, [2])[2].tokens, exact), "the original stays"
    names = {quantised(backbone, *bits, IMAGES).weights_hash for bits in ((None, None), (4, 8), (8, 8), (None, 8))}
    assert len(names) == 4, "features of one are never taken for another's"
    assert quantised(backbone, None, None, IMAGES).weights_hash == backbone.weights_hash


def test_distortions_of_all_sites() -> None:
    found = distortions(network(), IMAGES, IMAGES, (4, 8), batch=1)
    assert [one.site for one in found] == [
        *(f"{b}.{part}" for b in (1, 2) for part in ("norm1", "attn", "norm2", "mlp")),
        "norm",
    ]
    assert all(20 < one.sqnr[8] - one.sqnr[4] < 28 for one in found), "6 dB a bit"
    assert found[0].normalised_mse(8) == pytest.approx(10 ** (-found[0].sqnr[8] / 10))


def test_streaming_cka() -> None:
    layers = [randn(300, 8, seed=i) for i in range(2)]
    layers.append(layers[0] @ haar(8, 8, torch_rng(1)) * 2)
    streaming = StreamingCKA()
    for start in range(0, 300, 100):
        streaming.update([layer[start : start + 100] for layer in layers])
    matrix = streaming.matrix()
    torch.testing.assert_close(matrix.diagonal(), torch.ones(3, dtype=torch.float64))
    assert matrix[0, 2] == pytest.approx(1.0)
    assert abs(float(matrix[0, 1])) < 0.05 < linear_cka(layers[0][:100], layers[1][:100]), "unbiased, unlike plain CKA"
    with pytest.raises(ValueError, match="no batch"):
        StreamingCKA().matrix()


def test_a_collapsed_layer_is_similar_to_nothing() -> None:
    varied, equal = randn(64, 8, seed=1), randn(1, 8, seed=2).repeat(64, 1) * (1 + 1e-15 * randn(64, 1, seed=3))
    streaming = StreamingCKA()
    streaming.update([varied, equal, equal + 1e-6 * varied])
    matrix = streaming.matrix()
    assert matrix[1].isnan().all()
    assert matrix[0, 2] == pytest.approx(1.0, abs=1e-6), "little is not nothing"
    assert math.isnan(linear_cka(varied, equal))
    assert linear_cka(varied, equal + 1e-6 * varied) == pytest.approx(1.0, abs=1e-6)


def test_cka_between_networks() -> None:
    backbone = network()
    matrix = cka_between(backbone, backbone, IMAGES)
    torch.testing.assert_close(matrix.diagonal(), torch.ones(2, dtype=torch.float64))
    torch.testing.assert_close(matrix, matrix.T)


def test_ranks_and_outliers() -> None:
    eye = torch.eye(6, dtype=torch.float64)
    assert stable_rank(eye[None]) == pytest.approx(6)
    assert rankme(eye) == pytest.approx(6, rel=1e-5)
    assert rankme(torch.ones(9, 4).double()) == pytest.approx(1, abs=1e-4)
    tokens = torch.ones(1, 10, 4).double()
    tokens[0, 3] *= 7
    assert norm_outliers(tokens) == pytest.approx((7, 0.1))


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
