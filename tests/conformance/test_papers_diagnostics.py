"""Claims that need instruments: kurtosis, quantisation, similarity, numerical traps (checks 33-35 and 37)."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from timm.layers import Attention
from torch import Tensor
from torch.nn import functional as F

from dinoskip.diagnostics import (
    Moments,
    condition_number,
    excess_kurtosis,
    fake_quantise,
    input_jacobian,
    linear_cka,
    negentropy,
    normalised_mse,
    sqnr,
    weight_jacobian,
)
from dinoskip.diagnostics.tokens import log_condition
from dinoskip.init.orthogonal import haar
from dinoskip.models.rank_collapse import token_cosine
from dinoskip.runtime.randomness import torch_rng
from tests.conformance.fidelity import CONDITIONED, CUTTING, QUANTIZATION, kappa, normal, record


def gaussian_mean(function: Callable[[Tensor], Tensor]) -> float:
    """E f(g) for a standard normal g, by the trapezoid rule on [-12, 12]."""
    g = torch.linspace(-12, 12, 240_001, dtype=torch.float64)
    return float(torch.trapezoid(function(g) * (-g * g / 2).exp() / math.sqrt(2 * math.pi), g))


def kurtosis_of(moments: list[float]) -> float:
    m1, m2, m3, m4 = moments
    variance = m2 - m1**2
    return (m4 - 4 * m1 * m3 + 6 * m1**2 * m2 - 3 * m1**4) / variance**2 - 3


def exponential(*shape: int, seed: int | str = 0) -> Tensor:
    """Centred exponentials of variance 1: excess kurtosis 6."""
    uniform = torch.rand(*shape, dtype=torch.float64, generator=torch_rng(0, "exponential", seed))
    return -torch.log1p(-uniform) - 1


def test_33_kurtosis_constants() -> None:
    for name, function, constant in (("ReLU", F.relu, 2.407639), ("GELU", F.gelu, 3.084665)):
        moments = [gaussian_mean(lambda g, p=p, f=function: f(g) ** p) for p in (1, 2, 3, 4)]  # type: ignore[misc]
        record(QUANTIZATION, "lemma 12", f"excess kurtosis of {name}(g)", constant, kurtosis_of(moments), 1e-4)
        if name == "GELU":
            for power, value in enumerate((0.2821, 0.4252, 0.6751, 1.3047), 1):
                record(QUANTIZATION, "lemma 12", f"E GELU(g)^{power}", value, moments[power - 1], 1e-4)
    hits = torch.zeros(10, dtype=torch.float64)
    hits[0] = 1
    d = 10
    limit = (d * d - 6 * d + 6) / (d - 1)
    record(QUANTIZATION, "lemma 13", "(d² - 6d + 6)/(d - 1) at d = 10", 5.1111, limit, 1e-4)
    record(QUANTIZATION, "lemma 13", "a coordinate of a saturated softmax, d = 10", limit, excess_kurtosis(hits), 1e-12)


def test_33_kurtosis_estimator() -> None:
    x = normal(1_000_000)
    record(QUANTIZATION, "def. 1", "excess kurtosis of 10⁶ normals", 0, excess_kurtosis(x), 0.02)
    difference = excess_kurtosis(1e-3 * exponential(10_000) + 7) - excess_kurtosis(exponential(10_000))
    record(QUANTIZATION, "def. 1", "scale and shift change nothing", 0, difference, 1e-6)
    parts = [Moments.of(part + 100) for part in exponential(10_000).split([1, 999, 4000, 5000])]
    merged = parts[0] + (parts[1] + parts[2]) + parts[3]
    whole = Moments.of(exponential(10_000) + 100)
    record(QUANTIZATION, "def. 1", "merged in parts - at once", 0, merged.excess_kurtosis - whole.excess_kurtosis, 1e-9)


def test_34_dense_mixing_shrinks_kurtosis() -> None:
    d, samples = 64, 400_000
    hadamard = torch.ones(1, 1, dtype=torch.float64)
    while len(hadamard) < d:
        hadamard = torch.cat([torch.cat([hadamard, hadamard], 1), torch.cat([hadamard, -hadamard], 1)])
    row = hadamard[5] / d**0.5
    record(QUANTIZATION, "lemma 7", "Σ a⁴ d of a Hadamard row", 1, (row**4).sum() * d, 1e-12)
    mixed = torch.cat([exponential(samples // 8, d, seed=i) @ row for i in range(8)])
    record(QUANTIZATION, "lemma 7", "γ_y d, exponential u, Hadamard row", 6, excess_kurtosis(mixed) * d, 1.5)
    rows = haar(256, 256, torch_rng(0, "rows"))
    ratio = (rows**4).sum(1).mean() * (256 + 2) / 3
    record(QUANTIZATION, "sec. C.3", "Haar rows: mean Σ a⁴ (d + 2) / 3, d = 256", 1, ratio, 0.05)


def test_34_gaussian_rows_give_the_same_excess() -> None:
    """A Gaussian row is no unit vector: of Gaussian input over all rows γ_y = 6/d + O(1/d²), from the rows' norms."""
    d = 64
    mixed = normal(100, d, d, seed="x") @ normal(100, d, d, seed="w") / d**0.5
    record(QUANTIZATION, "sec. C.3", "γ_y d, Gaussian u, Gaussian rows", 6, excess_kurtosis(mixed) * d, 1.5)


def test_34_cumulant_form_is_exact() -> None:
    """Lemma 6: γ_y = γ_u Σ a⁴ for unit a; u takes three values, and all 3⁶ outcomes are weighed."""
    values = torch.tensor([-2.0, 0.0, 2.0], dtype=torch.float64)
    chances = torch.tensor([0.125, 0.75, 0.125], dtype=torch.float64)  # variance 1, γ = 1
    a = F.normalize(normal(6), dim=0)
    grid = torch.cartesian_prod(*[values] * 6)
    weight = torch.cartesian_prod(*[chances] * 6).prod(1)
    y = grid @ a
    exact = (weight * y**4).sum() / (weight * y**2).sum() ** 2 - 3
    record(QUANTIZATION, "lemma 6", "γ_y - γ_u Σ a⁴, every outcome of 6 coordinates", 0, exact - (a**4).sum(), 1e-12)


def residual_kurtosis(d: int, gamma: float, m2: float, m4: float, c22: float) -> float:
    """Eq. 19."""
    fourth = 3 + gamma + 6 / d * (c22 + (d - 1) * m2) + 3 / d**2 * (d * m4 + d * (d - 1) * m2**2)
    return fourth / (1 + m2) ** 2 - 3


def exponential_mean(function: Callable[[Tensor], Tensor]) -> float:
    """E f(x) for a centred exponential x, by the trapezoid rule."""
    x = torch.linspace(-1, 60, 610_001, dtype=torch.float64)
    return float(torch.trapezoid(function(x) * (-x - 1).exp(), x))


@pytest.mark.parametrize(("d", "expected"), [(8, 5.27), (64, 2.48)])
def test_35_residual_addition_keeps_kurtosis(d: int, expected: float) -> None:
    m2 = exponential_mean(lambda x: F.gelu(x) ** 2)
    m4 = exponential_mean(lambda x: F.gelu(x) ** 4)
    c22 = exponential_mean(lambda x: (x * F.gelu(x)) ** 2)
    formula = residual_kurtosis(d, 6, m2, m4, c22)
    draws, batch = (20_000, 25) if d == 8 else (500, 125)
    x = exponential(draws, batch, d, seed=d)
    y = x + F.gelu(x) @ (normal(draws, d, d, seed=f"w{d}") / d**0.5)
    found = Moments.of(y)
    record(QUANTIZATION, "lemma 11", f"variance of y / (1 + m₂), d = {d}", 1, found.variance / (1 + m2), 0.01)
    record(QUANTIZATION, "eq. 19", f"γ_y, 4·10⁶ values, d = {d}", formula, found.excess_kurtosis, 0.05 * formula)
    record(QUANTIZATION, "eq. 19", f"γ_y by the formula, d = {d}", expected, formula, 0.05 * expected)


def rounded(x: Tensor, bits: int) -> Tensor:
    return fake_quantise(x, bits, x.amin(), x.amax())


def test_37_signal_to_quantisation_noise() -> None:
    x = normal(1_000_000)
    found = {bits: sqnr(x, rounded(x, bits)) for bits in range(6, 13)}
    record(QUANTIZATION, "app. D", "SQNR of a Gaussian, 8 bits, in dB", 39.1, found[8], 0.5)
    slope = np.polyfit(list(found), list(found.values()), 1)[0]
    record(QUANTIZATION, "app. D", "dB a bit, 6 to 12 bits", 6.02, float(slope), 0.1)
    error = normalised_mse(x, rounded(x, 8))
    record(QUANTIZATION, "app. D", "SQNR + 10 log10 NMSE", 0, found[8] + 10 * math.log10(error), 1e-12)
    step = float(x.max() - x.min()) / 255
    noise = 10 * math.log10(12 * float(x.var()) / step**2)
    record(QUANTIZATION, "app. D", "10 log10(12 σ²/step²)", found[8], noise, 0.05)
    rng = np.random.Generator(np.random.PCG64(0))
    heavy = torch.from_numpy(rng.standard_t(3, 1_000_000))
    record(QUANTIZATION, "app. D", "SQNR of Student's t, 3 degrees, 8 bits", "< 25", sqnr(heavy, rounded(heavy, 8)))
    weights = normal(64, 512) * torch.logspace(-2, 0, 64, dtype=torch.float64)[:, None]
    rows = fake_quantise(weights, 8, weights.amin(1, keepdim=True), weights.amax(1, keepdim=True))
    gain = sqnr(weights, rows) - sqnr(weights, fake_quantise(weights, 8, weights.min(), weights.max()))
    record(QUANTIZATION, "app. D", "a range for each channel - one for all, in dB", ">= 0", gain)


@pytest.mark.parametrize(
    ("name", "value"), [("normal", 0.0), ("uniform", 0.1765), ("laplace", 0.0724), ("exponential", 0.4189)]
)
def test_37_negentropy(name: str, value: float) -> None:
    rng = np.random.Generator(np.random.PCG64(1))
    draw = torch.from_numpy(getattr(rng, name)(size=100_000))
    record(QUANTIZATION, "def. 3", f"negentropy of 10⁵ {name} values, in nats", value, negentropy(3 * draw + 5), 0.01)


def test_37_linear_cka() -> None:
    x, y = normal(200, 12), normal(200, 20, seed=1)
    record(CUTTING, "sec. 6", "CKA(X, X)", 1, linear_cka(x, x), 1e-12)
    turned = linear_cka(3 * x @ haar(12, 12, torch_rng(0)), y) - linear_cka(x, y)
    record(CUTTING, "sec. 6", "CKA after rotation and scaling - before", 0, turned, 1e-12)
    stretched = x * torch.logspace(-2, 2, 12, dtype=torch.float64)
    record(CUTTING, "sec. 6", "CKA with a stretched copy", "< 0.9", linear_cka(x, stretched))


# --- numerical traps --------------------------------------------------------------------------------------


def test_trap_i_layer_norm_takes_a_dimension() -> None:
    x = normal(80, 64)
    normed = log_condition(F.layer_norm(x, (64,))[None])
    record(CUTTING, "sec. 4", "ln κ of 80 LayerNormed tokens of width 64", "> 30", normed.log_mean)
    record(CUTTING, "sec. 4", "ln κ of the same before the norm", "< 5", log_condition(x[None]).log_mean)


def test_trap_ii_the_jacobian_leaves_the_norm_out() -> None:
    attention = Attention(32, num_heads=2, qkv_bias=True).double()
    attention.fused_attn = False
    torch.nn.init.normal_(attention.qkv.weight, std=0.2, generator=torch_rng(1))
    torch.nn.init.normal_(attention.proj.weight, std=0.2, generator=torch_rng(2))
    x = normal(6, 32)
    through = torch.func.jacrev(lambda v: attention(F.layer_norm(v, (32,))[None])[0])(x).reshape(192, 192)
    found = condition_number(through.detach())
    ours = input_jacobian(attention, F.layer_norm(x, (32,)))
    record(CUTTING, "eq. 8", "κ of the Jacobian through the norm", "> 1e14", found.kappa)
    record(CUTTING, "eq. 8", "κ of K, by norm1's output, is finite", "< 1e12", ours.kappa)


def test_trap_iii_the_key_bias_has_no_gradient() -> None:
    attention = Attention(32, num_heads=2, qkv_bias=True).double()
    torch.nn.init.normal_(attention.qkv.bias, generator=torch_rng(2))
    attention(normal(1, 9, 32)).square().sum().backward()
    gradient = attention.qkv.bias.grad
    ratio = gradient[32:64].norm() / gradient[:32].norm()
    record(CONDITIONED, "prop. 3.1", "gradient of the key bias / of the query bias", "< 1e-12", ratio)


def test_trap_iv_no_gram_matrix_in_single_precision() -> None:
    u, v = haar(40, 40, torch_rng(0, "u")), haar(40, 40, torch_rng(0, "v"))
    matrix = (u * torch.logspace(0, -6, 40, dtype=torch.float64)) @ v
    record(CUTTING, "sec. 4", "κ = 10⁶ by float64 singular values", 1e6, condition_number(matrix).kappa, 1)
    single = torch.linalg.eigvalsh(matrix.float() @ matrix.float().T)
    spread = (single[-1] / single.abs().min()).sqrt() / 1e6
    record(CUTTING, "sec. 4", "the same by a float32 Gram matrix / 10⁶", "< 0.1", spread)
    collapsed = torch.ones(5, 1, dtype=torch.float64) @ normal(1, 8)
    record(CUTTING, "sec. 4", "κ of collapsed tokens: cut at 1/eps", 2.0**52, condition_number(collapsed).kappa)
    record(CUTTING, "sec. 4", "and flagged", 1, bool(condition_number(collapsed).rank_deficient))
    record(CUTTING, "sec. 4", "their cosine is 1", 1, abs(token_cosine(collapsed[None])), 1e-12)


def test_trap_v_medians_not_means() -> None:
    """κ has a heavy tail: over 2,000 diffuse softmaxes the mean is another number at every draw."""
    matrices = (0.1 * normal(2000, 10, 10) / 10**0.5).softmax(-1)
    values = kappa(matrices)
    log_mean = math.exp(log_condition(matrices).log_mean)
    record(CUTTING, "fig. 5", "mean κ / median κ, diffuse", "> 2", values.mean() / values.median())
    record(CUTTING, "fig. 5", "exp of mean ln κ / median κ", "0.5..2", log_mean / float(values.median()))


# --- instruments against what they stand for -------------------------------------------------------------


def test_29_bound_holds_where_the_instrument_measures_it() -> None:
    above = {"bound": 0, "ceiling": 0}
    for trial in range(200):
        attention = Attention(12, num_heads=3, qkv_bias=False).double()
        scale = (0.1, 0.3, 0.6, 1.0)[trial % 4]
        torch.nn.init.normal_(attention.qkv.weight, std=scale, generator=torch_rng(trial, "w"))
        found = weight_jacobian(attention, normal(4 + trial % 9, 12, seed=trial), head=trial % 3)
        for name in above:
            above[name] += found.kappa > getattr(found, name) * (1 + 1e-9)
    record(CONDITIONED, "thm. 3.1", "κ(∂A/∂(W_Q, W_K, W_V)) above the bound, 200 random heads", 0, above["bound"])
    record(CONDITIONED, "thm. 3.1", "the same above what always holds, κ(X) κ(softmax) + ...", 0, above["ceiling"])
