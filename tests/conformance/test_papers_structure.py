"""Structure and forward pass of the papers' networks, a test a claim (checks 18-25)."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from timm.models.vision_transformer import Block as TimmBlock
from torch import Tensor
from torch.nn import functional as F

from dinoskip.diagnostics import SignalRow, bundled_photos, signal_table
from dinoskip.init import residual_free_, skipless_, temperatures, trunc_normal_
from dinoskip.init.orthogonal import haar
from dinoskip.init.skipless import noisy_identity, query_key_factors
from dinoskip.models import Block, create_model
from dinoskip.models.attention_sites import head_factors
from dinoskip.models.rank_collapse import condition_number
from dinoskip.runtime.randomness import torch_rng
from tests.conformance.fidelity import ALWAYS, CUTTING, QUANTIZATION, column_major, kappa, normal, record


@pytest.mark.parametrize("training", [False, True])
def test_18_skipless_block_is_the_exact_composition(training: bool) -> None:
    x = normal(2, 7, 48).float()
    block = Block(48, 3, qkv_bias=True, skip=False, drop_path=0.3).train(training)
    composed = block.mlp(block.norm2(block.attn(block.norm1(x))))
    record(CUTTING, "eq. 9", f"|block(x) - MLP(SA(x))|, train={training}", 0, (block(x) - composed).abs().max())
    ours, theirs = (kind(48, 3, qkv_bias=True, drop_path=0.3).train(training) for kind in (Block, TimmBlock))
    theirs.load_state_dict(ours.state_dict(), strict=True)
    results = []
    for block in (ours, theirs):
        torch.manual_seed(0)
        results.append(block(x))
    record(
        CUTTING, "sec. 3", f"|block with skips - timm's|, train={training}", 0, (results[0] - results[1]).abs().max()
    )


def test_19_partial_skips() -> None:
    x = normal(2, 7, 48).float()
    block = Block(48, 3, skip="attention")
    kept = x + block.attn(block.norm1(x))
    difference = (block(x) - block.mlp(block.norm2(kept))).abs().max()
    record(ALWAYS, "fig. 1", "FFN without its skip, SAB with: |block(x) - FFN(SA(x) + x)|", 0, difference)
    block = Block(48, 3, skip="mlp")
    attended = block.attn(block.norm1(x))
    difference = (block(x) - (attended + block.mlp(block.norm2(attended)))).abs().max()
    record(ALWAYS, "fig. 1", "SAB without its skip, FFN with: |block(x) - (FFN(y) + y)|, y = SA(x)", 0, difference)


def test_20_fused_attention_and_temperature() -> None:
    model = create_model("vit_tiny_patch16", skip=False, depth=12, img_size=32, weight_init="skip").double()
    for beta in (1.0, 1.1):
        residual_free_(model, beta=beta)
        x = F.layer_norm(normal(2, 33, 192), (192,))
        attention = model.blocks[11].attn
        with torch.no_grad():
            attention.fused_attn = True
            fused = attention(x)
            attention.fused_attn = False
            plain = attention(x)
        error = (fused - plain).norm() / plain.norm()
        record(QUANTIZATION, "sec. 4 (iii)", f"fused against explicit attention, β={beta}", "< 1e-10", error)
    taus = temperatures(24, 1.1)
    for layer, expected in ((1, 0.90909), (12, 0.31863), (24, 0.10153)):
        record(QUANTIZATION, "sec. 4 (iii)", f"τ of layer {layer}", expected, taus[layer - 1], 1e-5)
    query, key, _, _ = head_factors(model.blocks[11].attn)
    ratio = query.norm() / key.norm()
    record(QUANTIZATION, "sec. 4 (iii)", "τ of layer 12 in the weights: ‖W^Q‖ / ‖W^K‖", 1.1**-12, ratio, 1e-6)


def test_20_softer_attention_at_lower_temperature_factor() -> None:
    model = create_model("vit_tiny_patch16", skip=False, depth=12, img_size=32, weight_init="skip")
    x = F.layer_norm(normal(64, 192), (192,))
    entropies = []
    residual_free_(model, beta=1.1)
    query, key, _, _ = head_factors(model.blocks[0].attn)
    for tau in temperatures(12, 1.1):
        attention = ((x @ query * tau / 1.1**-1) @ (x @ key).mT / 8).softmax(-1)
        entropies.append(torch.special.entr(attention).sum(-1).mean())
    record(
        QUANTIZATION,
        "sec. 4 (iii)",
        "row entropy grows as τ falls: least increase",
        "> 0",
        torch.stack(entropies).diff().min(),
    )


def attention_on_gaussian_tokens(query: Tensor, key: Tensor) -> Tensor:
    dim = query.shape[-2]
    x = F.layer_norm(normal(256, dim), (dim,))
    return ((x @ query) @ (x @ key).mT / query.shape[-1] ** 0.5).softmax(-1)


@pytest.mark.parametrize(
    ("name", "constants", "argmax", "mean"),
    [("S", (384, 6, 1.8, 1.0), 0.97, 0.95), ("B", (768, 12, 2.0, 0.6), 0.7, 0.6)],
)
def test_21_diagonal_dominance(name: str, constants: tuple[int, int, float, float], argmax: float, mean: float) -> None:
    dim, heads, alpha, beta = constants
    query, key = query_key_factors(dim, heads, noisy_identity(dim, alpha, beta, "normal", 1, "x"))
    attention = attention_on_gaussian_tokens(query, key)
    hits = (attention.argmax(-1) == torch.arange(256)).double().mean()
    diagonal = attention.diagonal(dim1=-2, dim2=-1).mean()
    record(CUTTING, "sec. 5.2", f"rows of A with their maximum on the diagonal, ViT-{name}", f">= {argmax}", hits)
    record(CUTTING, "sec. 5.2", f"mean A_ii, ViT-{name}", f">= {mean}", diagonal)
    if name == "S":
        record(CUTTING, "prop. 1", "median κ(A), ViT-S", "< 30", condition_number(attention).kappa.median())


def test_21_default_attention_is_diffuse() -> None:
    model = create_model("vit_small_patch16", depth=1, img_size=32, weight_init="skip")
    trunc_normal_(model)
    attention = attention_on_gaussian_tokens(*head_factors(model.blocks[0].attn)[:2])
    hits = (attention.argmax(-1) == torch.arange(256)).double().mean()
    record(CUTTING, "sec. 5.2", "rows of A with their maximum on the diagonal, default", "< 0.02", hits)
    record(CUTTING, "sec. 5.2", "mean A_ii, default", "< 0.01", attention.diagonal(dim1=-2, dim2=-1).mean())
    record(CUTTING, "prop. 1", "median κ(A), default", "> 1000", condition_number(attention).kappa.median())


@functools.cache
def signal(name: str) -> dict[str, SignalRow]:
    return {row.name: row for row in signal_table(bundled_photos(2), name=name)}


SIZES = ["vit_tiny_patch16", pytest.param("vit_small_patch16", marks=pytest.mark.slow)]


@pytest.mark.parametrize("name", SIZES)
def test_22_rank_collapse_depth(name: str) -> None:
    skip, default, ours = (signal(name)[row] for row in ("skip", "skipless default", "skipless initialised"))
    record(CUTTING, "sec. 4", f"{name}, default: token cosine at block 4", "> 0.999", default.token_cosine[3])
    record(CUTTING, "sec. 5", f"{name}, initialised: token cosine at block 6", "< 0.9", ours.token_cosine[5])
    record(CUTTING, "sec. 5", f"{name}, initialised: final token cosine", "< 0.995", ours.final_cosine)
    record(CUTTING, "sec. 4", f"{name}, skip: largest token cosine", "< 0.6", max(skip.token_cosine))
    record(CUTTING, "sec. 4", f"{name}, default: final effective rank", "< 1.01", default.final_effective_rank)
    record(CUTTING, "sec. 5", f"{name}, initialised: final effective rank", "> 1.1", ours.final_effective_rank)
    record(CUTTING, "sec. 4", f"{name}, skip: final effective rank", "> 30", skip.final_effective_rank)


@pytest.mark.parametrize("name", SIZES)
def test_23_query_gradient_is_restored(name: str) -> None:
    default, ours = (signal(name)[row].query_gradient for row in ("skipless default", "skipless initialised"))
    record(
        CUTTING, "sec. 5.2", f"{name}: |dL/dW_Q| of block 12, initialised / default", "> 1e6", ours[11] / default[11]
    )
    record(CUTTING, "sec. 5.2", f"{name}: |dL/dW_Q|, block 1 / block 12, initialised", "< 30", ours[0] / ours[11])


def jacobian_of_attention(attention: Any, x: Tensor) -> Tensor:
    """K_l (nD, nD): the derivative of the attention's output by its LayerNormed input (n, D)."""
    size = x.numel()
    return torch.func.jacrev(lambda v: attention(v[None])[0])(x).reshape(size, size)


@pytest.mark.parametrize("seeds", [1, pytest.param(5, marks=pytest.mark.slow)])
def test_24_conditioning_of_the_attention_jacobian(seeds: int) -> None:
    ours, default, shifted = [], [], []
    for seed in range(seeds):
        model = create_model("vit_tiny_patch16", skip=False, depth=1, img_size=32, embed_dim=64, num_heads=4)
        model = model.double().eval()
        x = F.layer_norm(normal(16, 64, seed=seed), (64,))
        attention = model.blocks[0].attn
        attention.fused_attn = False
        trunc_normal_(model, seed)
        plain = jacobian_of_attention(attention, x)
        default.append(kappa(plain))
        shifted.append(kappa(plain + torch.eye(len(plain), dtype=torch.float64)))
        skipless_(model, seed=seed)
        ours.append(kappa(jacobian_of_attention(attention, x)))
    ratio = torch.stack(default).median() / torch.stack(ours).median()
    record(CUTTING, "prop. 2", "median κ(K) default / initialised", "> 20", ratio)
    worst = (torch.stack(shifted) / torch.stack(default)).max()
    record(CUTTING, "eq. 8", "κ(K + I) / κ(K) of the default, largest", "<= 1", worst)


def test_24_dominant_term_has_an_exact_condition_number() -> None:
    """B = Σ_i (W^V_i W^O_i)ᵀ ⊗ A_i: heads have orthogonal ranges, so its singular values are c² times those of A_i."""
    heads, dim, n = 3, 12, 5
    value, output = 3 * haar(dim, dim, torch_rng(0, "v")), 3 * haar(dim, dim, torch_rng(0, "o"))
    attention = (2 * normal(heads, n, n)).softmax(-1)
    parts = value.reshape(dim, heads, 4).transpose(0, 1) @ output.reshape(heads, 4, dim)
    total = sum(torch.kron(part.T.contiguous(), a) for part, a in zip(parts, attention, strict=True))
    values = torch.linalg.svdvals(attention)
    expected = values[:, 0].max() / values[:, -1].min()
    record(CUTTING, "prop. 2", "κ(B) / (max_i s_max(A_i) / min_i s_min(A_i))", 1.0, kappa(total) / expected, 1e-10)


def test_25_analytic_attention_jacobian() -> None:
    n, dim, width = 6, 8, 4
    x = normal(n, dim)
    query, key, value, output = (
        normal(dim, width, seed=1),
        normal(dim, width, seed=2),
        normal(dim, dim, seed=3),
        normal(dim, dim, seed=4),
    )

    def attend(tokens: Tensor) -> Tensor:
        return ((tokens @ query) @ (tokens @ key).T / width**0.5).softmax(-1)

    derivative = column_major(torch.func.jacrev(attend)(x), (n, n), (n, dim))
    for equation, name, mixing, formula in (
        ("eq. 12", "SA(X)", value, "(V ⊗ I)ᵀ A' + (W^V)ᵀ ⊗ A"),
        ("eq. 13", "SA(X) W^O", value @ output, "(X W^V W^O ⊗ I)ᵀ A' + (W^V W^O)ᵀ ⊗ A"),
    ):
        automatic = torch.func.jacrev(lambda v, m=mixing: attend(v) @ v @ m)(x)
        analytic = torch.kron((x @ mixing).T.contiguous(), torch.eye(n, dtype=torch.float64)) @ derivative
        analytic = analytic + torch.kron(mixing.T.contiguous(), attend(x))
        error = (analytic - column_major(automatic, (n, dim), (n, dim))).abs().max()
        record(CUTTING, equation, f"|{formula} - autograd|, of {name}", "< 1e-12", error)
