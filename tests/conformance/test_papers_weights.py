"""Claims of the papers on the weights of their initialisations, a test a claim (checks 1-17).

Row convention: W^Q_i, W^K_i (D, dh), W^V, W^O (D, D). ViT-S uses alpha 1.8, beta 1; ViT-B alpha 2, beta 0.6; c = 3.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest
import timm
import torch
from scipy.optimize import minimize_scalar
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from dinoskip.init import conditioned_, residual_free_, skipless_, temperatures, trunc_normal_
from dinoskip.init.orthogonal import haar
from dinoskip.init.skipless import noisy_identity, query_key_factors
from dinoskip.models import create_model
from dinoskip.models.attention_sites import head_factors
from dinoskip.models.rank_collapse import condition_number
from dinoskip.runtime.randomness import torch_rng
from tests.conformance.fidelity import CONDITIONED, CUTTING, QUANTIZATION, record

ROOT = 64**0.5
PAPER = {"tiny": (1.8, 1.0), "small": (1.8, 1.0), "base": (2.0, 0.6)}


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def blank(size: str, depth: int = 1, **options: Any) -> VisionTransformer:
    model = create_model(f"vit_{size}_patch16", depth=depth, img_size=32, weight_init="skip", **options)
    with torch.no_grad():
        for index, parameter in enumerate(model.parameters()):
            parameter.fill_(0.01 + 0.001 * index)  # nothing is at a value that an initialiser might write by chance
    return model


@functools.cache
def _skipless(size: str, draw: Any) -> VisionTransformer:
    alpha, beta = PAPER[size]
    model = blank(size, 3 if (size, draw) == ("small", "haar") else 1, skip=False)
    skipless_(model, alpha, beta, 3.0, draw=draw)
    return model


def skipless(size: str, draw: str = "haar") -> VisionTransformer:
    return _skipless(size, draw)


@functools.cache
def default(size: str = "small") -> VisionTransformer:
    model = blank(size, skip=False)
    trunc_normal_(model)
    return model


def factors(model: VisionTransformer, block: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return head_factors(model.blocks[block].attn)


def eye(size: int) -> Tensor:
    return torch.eye(size, dtype=torch.float64)


def off_by(matrix: Tensor, expected: Tensor) -> float:
    return float((matrix - expected).abs().max())


def spread_of(matrix: Tensor, value: float) -> float:
    """Largest distance of a singular value from ``value``."""
    return float((torch.linalg.svdvals(matrix) - value).abs().max())


@pytest.mark.parametrize("draw", ["haar", "svd"])
def test_01_vo_conditioning(draw: str) -> None:
    for block in skipless("small", draw).blocks:
        _, _, value, output = head_factors(block.attn)
        values = torch.linalg.svdvals(value @ output)
        record(CUTTING, "sec. 5.1", f"κ(W^V W^O), {draw}", 1.0, float(values[0] / values[-1]), 1e-4)
        record(
            CUTTING, "sec. 5.1", "singular values of W^V W^O are c², largest error", 0.0, (values - 9).abs().max(), 1e-3
        )
    _, _, value, output = factors(default())
    record(CUTTING, "sec. 5.1", "κ(W^V W^O), default", "> 100", condition_number(value @ output).kappa)


@pytest.mark.parametrize("draw", ["haar", "svd"])
def test_02_v_and_o_are_scaled_orthogonal(draw: str) -> None:
    _, _, value, output = factors(skipless("small", draw))
    record(CUTTING, "sec. 5.1", "|W^Vᵀ W^V / c² - I|", "< 1e-5", off_by(value.T @ value / 9, eye(384)))
    record(CUTTING, "sec. 5.1", "|W^O W^Oᵀ / c² - I|", "< 1e-5", off_by(output @ output.T / 9, eye(384)))
    record(
        CUTTING,
        "sec. 5.1",
        "W^V W^O is a rotation, not I: |W^V W^O / c² - I|",
        "> 0.5",
        off_by(value @ output / 9, eye(384)),
    )


def test_03_value_and_output_heads_are_orthonormal_and_mutually_orthogonal() -> None:
    _, _, value, output = factors(skipless("small"))
    heads = value.unflatten(1, (6, 64)).permute(1, 0, 2)
    grams = torch.einsum("hdi,gdj->hgij", heads, heads) / 9
    expected = torch.einsum("hg,ij->hgij", eye(6), eye(64))
    record(CUTTING, "sec. 5.1", "W^V_iᵀ W^V_j / c² = δ_ij I", "< 1e-5", off_by(grams, expected))
    rows = output.unflatten(0, (6, 64))
    record(
        CUTTING,
        "sec. 5.1",
        "W^O_i W^O_jᵀ / c² = δ_ij I",
        "< 1e-5",
        off_by(torch.einsum("hid,gjd->hgij", rows, rows) / 9, expected),
    )
    products = torch.einsum("hdi,hie->hde", heads, rows)
    record(CUTTING, "sec. 5.1", "Σ_i W^V_i W^O_i = W^V W^O", "< 1e-12", off_by(products.sum(0), value @ output))
    overlap = torch.einsum("hde,gdf->hgef", products, products)[~torch.eye(6, dtype=torch.bool)]
    record(CUTTING, "sec. 5.1", "output ranges of different heads are orthogonal", "< 1e-4", overlap.abs().max())


def test_04_draws_per_head_are_not_equivalent() -> None:
    """Semi-orthogonal V and O drawn anew for each head: every head looks perfect, the sum over heads is not."""
    values = torch.cat([haar(384, 64, torch_rng(0, "v", head)) for head in range(6)], 1)
    outputs = torch.cat([haar(64, 384, torch_rng(0, "o", head)) for head in range(6)], 0)
    head = torch.linalg.svdvals(values[:, :64] @ outputs[:64])[:64]
    record(CUTTING, "sec. 5.1", "κ of W^V_i W^O_i on its range, heads drawn alone", 1.0, head[0] / head[-1], 1e-9)
    record(
        CUTTING, "sec. 5.1", "κ(Σ_i W^V_i W^O_i), heads drawn alone", "> 1000", condition_number(values @ outputs).kappa
    )


@pytest.mark.parametrize("size", ["small", "base"])
def test_05_query_and_key_are_balanced(size: str) -> None:
    query, key, _, _ = factors(skipless(size))
    squares = query.mT @ query
    diagonal = squares.diagonal(dim1=-2, dim2=-1)
    record(CUTTING, "eq. 11", "W^Qᵀ W^Q is diagonal", "< 1e-4", off_by(squares, torch.diag_embed(diagonal)))
    record(CUTTING, "eq. 11", "W^Kᵀ W^K = W^Qᵀ W^Q", "< 1e-4", off_by(key.mT @ key, squares))
    record(CUTTING, "eq. 11", "the diagonal decreases", "< 0", diagonal.diff(dim=-1).max())
    values = torch.linalg.svdvals(query[0] @ key[0].T)
    record(
        CUTTING,
        "eq. 11",
        "singular values of W^Q W^Kᵀ are that diagonal (relative)",
        "< 1e-5",
        (values[:64] / diagonal[0] - 1).abs().max(),
    )
    record(CUTTING, "eq. 11", "rank of W^Q W^Kᵀ is dh: s_65 / s_1", "< 1e-6", values[64] / values[0])


def test_05_query_and_key_are_balanced_before_the_cast() -> None:
    query, key = query_key_factors(768, 2, noisy_identity(768, 2.0, 0.6, "normal", 0, "x"))
    squares = query.mT @ query
    for gram in (squares, key.mT @ key):
        diagonal = squares.diagonal(dim1=-2, dim2=-1)
        record(CUTTING, "eq. 11", "balanced in float64", "< 1e-10", off_by(gram, torch.diag_embed(diagonal)))


def edge(alpha: float, beta: float) -> float:
    """Largest singular value of alpha Z + beta I in the limit of large D (information plus noise, aspect ratio 1)."""
    if beta == 0:
        return 2 * alpha
    found = minimize_scalar(
        lambda w: w**0.5 * (1 + alpha**2 / (w - beta**2)), bounds=(beta**2 + 1e-6, 100), method="bounded"
    )
    return float(found.fun)


@pytest.mark.parametrize(("size", "limit"), [("small", 4.033), ("base", 4.164)])
def test_06_largest_singular_value(size: str, limit: float) -> None:
    alpha, beta = PAPER[size]
    record(CUTTING, "eq. 11", f"edge of the spectrum of {alpha} Z + {beta} I", limit, edge(alpha, beta), 1e-3)
    query, _, _, _ = factors(skipless(size))
    top = torch.linalg.svdvals(query)[:, 0].square()
    record(CUTTING, "eq. 11", f"s_1(W^Q W^Kᵀ) of ViT-{size}, mean over heads", limit, top.mean(), 0.05)


def test_06_without_the_identity_the_edge_is_two_alpha() -> None:
    query, _ = query_key_factors(384, 6, noisy_identity(384, 1.8, 0.0, "normal", 0, "x"))
    record(CUTTING, "eq. 11", "s_1 at beta 0 is 2 alpha", 3.6, torch.linalg.svdvals(query)[:, 0].square().mean(), 0.05)


@pytest.mark.parametrize(
    ("size", "trace", "norm"), [("small", 18.45, 3.41), ("base", 14.0, 3.745), ("tiny", 15.8, 3.05)]
)
def test_07_mean_diagonal_logit(size: str, trace: float, norm: float) -> None:
    query, key, _, _ = factors(skipless(size))
    record(CUTTING, "eq. 11", f"tr(W^Q W^Kᵀ)/√dh of ViT-{size}", trace, (query * key).sum((-2, -1)).mean() / ROOT, 0.5)
    norms = torch.linalg.matrix_norm(query @ key.mT) / ROOT
    record(CUTTING, "eq. 11", f"‖W^Q W^Kᵀ‖_F/√dh of ViT-{size}", norm, norms.mean(), 0.1)


def test_07_default_logits_are_diffuse() -> None:
    query, key, _, _ = factors(default())
    record(
        CUTTING, "sec. 5.2", "|tr(W^Q W^Kᵀ)|/√dh, default", "< 0.3", ((query * key).sum((-2, -1)) / ROOT).abs().max()
    )


@pytest.mark.parametrize(("size", "kappa"), [("small", 1.16), ("base", 1.09)])
def test_08_condition_of_query_and_key(size: str, kappa: float) -> None:
    query, key, _, _ = factors(skipless(size))
    for name, part in (("Q", query), ("K", key)):
        record(
            CUTTING,
            "eq. 11",
            f"κ(W^{name}_i) of ViT-{size}, median",
            kappa,
            condition_number(part).kappa.median(),
            0.015,
        )


def test_09_heads_draw_their_own_noise() -> None:
    query, key, _, _ = factors(skipless("small"))
    overlaps = torch.tensor([float((query[i].T @ query[j]).abs().max()) for i in range(6) for j in range(i)])
    record(CUTTING, "eq. 11", "max |W^Q_iᵀ W^Q_j|: not a split of one matrix", "> 0.01", overlaps.min())
    products = query @ key.mT
    distance = min(off_by(products[i], products[j]) for i in range(6) for j in range(i))
    record(CUTTING, "eq. 11", "no two heads share alpha Z + beta I", "> 0.1", distance)
    split, _ = query_key_factors(96, 3, noisy_identity(96, 1.8, 1.0, "normal", 0, "x"), split=True)
    record(CUTTING, "eq. 11", "heads=split has orthogonal ranges", "< 1e-6", (split[0].T @ split[1]).abs().max())


def test_10_mlp_singular_values_and_q_preservation() -> None:
    for block in skipless("small").blocks:
        fc1, fc2 = (block.mlp.get_submodule(name).weight.double() for name in ("fc1", "fc2"))
        record(CUTTING, "sec. 6", "singular values of fc1 are 2, largest error", 0.0, spread_of(fc1, 2.0), 1e-5)
        record(CUTTING, "sec. 6", "singular values of fc2 are 1, largest error", 0.0, spread_of(fc2, 1.0), 1e-5)
        x = torch.randn(512, 384, dtype=torch.float64, generator=torch_rng(0))
        y = torch.randn(512, 1536, dtype=torch.float64, generator=torch_rng(1))
        record(CUTTING, "sec. 6", "mean square kept by fc1", 1.0, (x @ fc1.T).square().mean() / x.square().mean(), 1e-5)
        record(CUTTING, "sec. 6", "mean square kept by fc2", 1.0, (y @ fc2.T).square().mean() / y.square().mean(), 0.02)


def test_11_mlp_row_norms() -> None:
    mlp = skipless("small").blocks[0].mlp
    fc1, fc2 = mlp.fc1.weight.double(), mlp.fc2.weight.double()
    record(CUTTING, "sec. 6", "fc2 rows are unit", "< 1e-6", (fc2.norm(dim=1) - 1).abs().max())
    record(CUTTING, "sec. 6", "fc1 columns have norm 2", "< 1e-5", (fc1.norm(dim=0) - 2).abs().max())
    squares = fc1.square().sum(1)
    record(CUTTING, "sec. 6", "fc1 rows: mean squared norm", 1.0, squares.mean(), 1e-6)
    record(CUTTING, "sec. 6", "fc1 rows: least squared norm", "0.75..1", squares.min())
    record(CUTTING, "sec. 6", "fc1 rows: largest squared norm", "1..1.3", squares.max())


def test_12_the_rest_is_untouched() -> None:
    before, model = (blank("small", 2, skip=False, num_classes=3) for _ in range(2))
    skipless_(model)
    changed = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
    after = model.state_dict()
    kept = {name: tensor for name, tensor in before.state_dict().items() if not any(part in name for part in changed)}
    record(
        CUTTING,
        "sec. 6",
        "parameters outside attention and MLP that changed",
        0,
        sum(not torch.equal(after[name], tensor) for name, tensor in kept.items()),
    )
    biases = [tensor for name, tensor in after.items() if name not in kept and name.endswith("bias")]
    record(CUTTING, "sec. 6", "largest attention or MLP bias", 0, max(float(bias.abs().max()) for bias in biases))
    theirs = timm.create_model("vit_small_patch16_224", depth=2, img_size=32, num_classes=3)
    theirs.load_state_dict(after, strict=True)
    model.load_state_dict(theirs.state_dict(), strict=True)


def test_13_low_precision_keeps_the_conditioning() -> None:
    model = blank("small", skip=False).bfloat16()
    skipless_(model)
    _, _, value, output = factors(model)
    record(CUTTING, "sec. 5.1", "κ(W^V W^O) in bfloat16", "< 1.02", condition_number(value @ output).kappa)
    exact = skipless("small").blocks[0].attn.qkv.weight
    record(
        CUTTING,
        "sec. 5.1",
        "bfloat16 weights are the float32 ones, cast last",
        0,
        off_by(model.blocks[0].attn.qkv.weight.float(), exact.bfloat16().float()),
        0.004,
    )


def test_14_uniform_noise() -> None:
    query, key = query_key_factors(384, 6, noisy_identity(384, 1.8, 1.0, "uniform", 0, "x"))
    record(
        CUTTING, "eq. 11", "uniform Z: s_1(W^Q W^Kᵀ)", 4.033, torch.linalg.svdvals(query)[:, 0].square().mean(), 0.05
    )
    record(CUTTING, "eq. 11", "uniform Z: tr(W^Q W^Kᵀ)/√dh", 18.45, (query * key).sum((-2, -1)).mean() / ROOT, 0.5)
    norms = torch.linalg.matrix_norm(query @ key.mT) / ROOT
    record(CUTTING, "eq. 11", "uniform Z: ‖W^Q W^Kᵀ‖_F/√dh", 3.41, norms.mean(), 0.1)


def test_15_conditioned_initialisation() -> None:
    model = blank("small")
    projection = model.blocks[0].attn.proj.weight.detach().clone()
    conditioned_(model)
    query, key, value, _ = factors(model)
    record(CONDITIONED, "sec. 3.3", "W^Q_iᵀ W^Q_i = I", "< 1e-5", off_by(query.mT @ query, eye(64).expand(6, -1, -1)))
    record(CONDITIONED, "sec. 3.3", "W^K_iᵀ W^K_i = I", "< 1e-5", off_by(key.mT @ key, eye(64).expand(6, -1, -1)))
    record(CONDITIONED, "sec. 3.3", "W^Q and W^K are independent: |W^Q - W^K|", "> 0.05", off_by(query, key))
    record(CONDITIONED, "sec. 3.3", "heads are independent: |W^Q_1 - W^Q_2|", "> 0.05", off_by(query[0], query[1]))
    heads = value.unflatten(1, (6, 64)).transpose(0, 1)
    record(
        CONDITIONED,
        "sec. A.1.1",
        "W^V_i = I_{D×dh} exactly, all heads",
        0,
        off_by(heads, eye(384)[:, :64].expand(6, -1, -1)),
    )
    record(CONDITIONED, "sec. 3.3", "W^O is left as it was", 0, off_by(model.blocks[0].attn.proj.weight, projection))
    values = torch.linalg.svdvals(value)
    record(CONDITIONED, "sec. 3.3", "largest singular value of all heads' W^V is √h", 6**0.5, values[0], 1e-6)
    record(CONDITIONED, "sec. 3.3", "and its rank is dh", 64, int((values > 1e-6).sum()))
    conditioned_(model, v="blocked")
    record(CONDITIONED, "sec. 3.3", "v=blocked: W^V = I_D", 0, off_by(factors(model)[2], eye(384)))


def test_16_residual_free_initialisation() -> None:
    model = blank("small", 2, skip=False)
    residual_free_(model)
    for index, block in enumerate(model.blocks):
        query, key, value, output = factors(model, index)
        record(QUANTIZATION, "sec. 4 (i)", "W^Q_i = W^K_i", 0, off_by(query, key))
        record(
            QUANTIZATION,
            "sec. 4 (i)",
            "W^Q_iᵀ W^Q_i = 0.9 I",
            "< 1e-5",
            off_by(query.mT @ query, 0.9 * eye(64).expand(6, -1, -1)),
        )
        eigenvalues = torch.linalg.eigvalsh(query[0] @ key[0].T)
        record(
            QUANTIZATION,
            "sec. 4 (i)",
            "eigenvalues of W^Q_i W^K_iᵀ: the smallest D - dh are 0",
            "< 1e-5",
            eigenvalues[:-64].abs().max(),
        )
        record(
            QUANTIZATION, "sec. 4 (i)", "and the largest dh are 0.9", "< 1e-5", (eigenvalues[-64:] - 0.9).abs().max()
        )
        record(QUANTIZATION, "sec. 4 (i)", "trace of W^Q_i W^K_iᵀ", 57.6, (query[0] * key[0]).sum(), 1e-3)
        record(QUANTIZATION, "sec. 4 (i)", "W^V W^O = 3 I", "< 1e-4", off_by(value @ output, 3 * eye(384)))
        fc1, fc2 = block.mlp.fc1.weight.double(), block.mlp.fc2.weight.double()
        record(QUANTIZATION, "sec. 4 (i)", "fc1ᵀ fc1 = 1.5 I", "< 1e-5", off_by(fc1.T @ fc1, 1.5 * eye(384)))
        record(QUANTIZATION, "sec. 4 (i)", "fc2 fc2ᵀ = 1.5 I", "< 1e-5", off_by(fc2 @ fc2.T, 1.5 * eye(384)))


def test_17_residual_free_readings_and_temperature() -> None:
    model = blank("small", 2, skip=False)
    residual_free_(model, reading="factor")
    query, key, value, output = factors(model)
    record(QUANTIZATION, "sec. 4 (i)", "factor reading: W^Q = W^K", 0, off_by(query, key))
    for name, matrix, expected in (
        ("W^Q_i", query[0], 0.9),
        ("W^V", value, 3.0),
        ("W^O", output, 3.0),
        ("fc1 (SUO)", model.blocks[0].mlp.fc1.weight.double(), 3.0),
        ("fc2 (SUO)", model.blocks[0].mlp.fc2.weight.double(), 1.5),
    ):
        record(
            QUANTIZATION,
            "sec. 4 (i)",
            f"factor reading: singular values of {name}",
            0.0,
            spread_of(matrix, expected),
            1e-5,
        )
    for mode, first_layer in (("multiply", 1), ("multiply", 0), ("divide", 1)):
        residual_free_(model, beta=1.1, mode=mode, first_layer=first_layer)  # type: ignore[arg-type]
        taus = temperatures(2, 1.1, mode=mode, first_layer=first_layer)  # type: ignore[arg-type]
        for index, tau in enumerate(taus):
            query, key, _, _ = factors(model, index)
            record(
                QUANTIZATION,
                "sec. 4 (iii)",
                f"W^Q = τ W^K, {mode}, layer {index + first_layer}",
                "< 1e-6",
                off_by(query, tau * key),
            )
            record(
                QUANTIZATION, "sec. 4 (iii)", "and W^Kᵀ W^K = 0.9 I", "< 1e-5", off_by(key[0].T @ key[0], 0.9 * eye(64))
            )
