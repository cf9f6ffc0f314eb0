"""Closed-form theory of the papers, a test a claim (checks 26-32 and 36)."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from dinoskip.diagnostics import bundled_photos
from dinoskip.init.orthogonal import haar
from dinoskip.models.graying import dct_graying, patches, svd_graying
from dinoskip.models.rank_collapse import condition_number
from dinoskip.runtime.randomness import torch_rng
from tests.conformance.fidelity import (
    ALWAYS,
    CONDITIONED,
    CUTTING,
    QUANTIZATION,
    column_major,
    kappa,
    normal,
    record,
)


def nonzero_kappa(matrix: Tensor) -> float:
    """Largest over smallest singular value that is not rounding noise."""
    values = torch.linalg.svdvals(matrix)
    kept = values[values > values[0] * 1e-10]
    return float(kept[0] / kept[-1])


def test_26_peaked_and_diffuse_softmax() -> None:
    z = 0.1 * normal(2000, 10, 10) / 10**0.5
    peaked = kappa((z + 5 * torch.eye(10, dtype=torch.float64)).softmax(-1))
    diffuse = kappa(z.softmax(-1))
    record(CUTTING, "fig. 5", "κ(softmax), β = 5, median of 2000", "1.06..1.10", peaked.median())
    record(CUTTING, "fig. 5", "κ(softmax), β = 0, median of 2000", "200..5000", diffuse.median())
    record(CUTTING, "fig. 5", "κ(softmax), β = 0, least of 2000", "> 20", diffuse.min())
    record(CUTTING, "fig. 5", "ratio of the medians", "> 100", diffuse.median() / peaked.median())


@pytest.mark.parametrize(("n", "g", "value"), [(10, 5, 1.0678365), (197, 5, 2.336380), (197, 10, 1.008944)])
def test_26_softmax_of_a_scaled_identity(n: int, g: int, value: float) -> None:
    exact = (math.exp(g) + n - 1) / (math.exp(g) - 1)
    record(CUTTING, "prop. 1", f"(e^g + n - 1)/(e^g - 1), n={n}, g={g}", value, exact, 1e-6)
    got = kappa((g * torch.eye(n, dtype=torch.float64)).softmax(-1))
    record(CUTTING, "prop. 1", f"κ(softmax(g I)), n={n}, g={g}", exact, got, 1e-9)


def test_27_softmax_conditioning_bounds() -> None:
    violations = {"dominant": 0, "diffuse": 0}
    checked = 0
    for trial in range(500):
        n = 3 + trial % 10
        logits = normal(n, n, seed=trial)
        off = logits.masked_fill(torch.eye(n, dtype=torch.bool), -math.inf).amax(1)
        gap = 3 + trial % 4
        peaked = (logits.diagonal_scatter(off + gap)).softmax(-1)
        error = float(torch.linalg.matrix_norm(peaked - torch.eye(n, dtype=torch.float64), 2))
        if error < 1:
            checked += 1
            violations["dominant"] += bool(kappa(peaked) > (1 + error) / (1 - error) * (1 + 1e-12))
        diffuse = 0.1 * logits
        spread = float((diffuse.amax(1) - diffuse.amin(1)).max())
        violations["diffuse"] += bool(kappa(diffuse.softmax(-1)) < 1 / spread)
    record(CUTTING, "prop. 1", "dominant rows: cases in which the bound says something, of 500", ">= 250", checked)
    record(CUTTING, "prop. 1", "dominant rows: κ(A) > (1 + E)/(1 - E)", 0, violations["dominant"])
    record(CUTTING, "prop. 1", "diffuse rows: κ(A) < τ/Δ, of 500", 0, violations["diffuse"])


def test_28_concatenation_bound() -> None:
    violations = checked = 0
    for trial in range(300):
        tall, a, b = 60 + trial, 2 + trial % 4, 2 + trial % 3
        first, second = normal(tall, a, seed=trial), normal(tall, b, seed=f"b{trial}")
        values = torch.cat([torch.linalg.svdvals(first), torch.linalg.svdvals(second)])
        coherence = torch.linalg.matrix_norm(first.T @ second, 2)
        if coherence < values.min() ** 2:
            checked += 1
            bound = ((values.max() ** 2 + coherence) / (values.min() ** 2 - coherence)).sqrt()
            violations += bool(kappa(torch.cat([first, second], 1)) > bound * (1 + 1e-12))
    record(CUTTING, "eq. 37", "random pairs to which the bound applies, of 300", ">= 200", checked)
    record(CUTTING, "eq. 37", "κ([A B]) above the bound", 0, violations)


def softmax_jacobian(attention: Tensor) -> Tensor:
    """Λ: d vec(A)/d vec(S), column-major (N², N²); block-diagonal after a permutation."""
    n = len(attention)
    blocks = torch.diag_embed(attention) - attention[:, :, None] * attention[:, None, :]
    full = torch.zeros(n, n, n, n, dtype=torch.float64)  # [j, i, k, i']: d A_ij / d S_i'k
    index = torch.arange(n)
    full[:, index, :, index] = blocks
    return full.reshape(n * n, n * n)


def attention_jacobians(x: Tensor, query: Tensor, key: Tensor, value: Tensor) -> tuple[list[Tensor], Tensor, Tensor]:
    """Paper 3, eqs. 5-7: the derivatives by W_Q, W_K and W_V, then Λ and the softmax."""
    n, (dim, width) = len(x), query.shape
    attention = (x @ query @ key.T @ x.T).softmax(-1)
    spread = softmax_jacobian(attention)
    left = torch.kron((x @ value).T.contiguous(), torch.eye(n, dtype=torch.float64)) @ spread
    commutation = torch.zeros(dim * width, dim * width, dtype=torch.float64)
    place = torch.arange(dim * width).reshape(width, dim)  # column-major place of entry (row, column) is [column, row]
    commutation[torch.arange(dim * width), place.T.flatten()] = 1.0
    by_query = left @ torch.kron((x @ key).contiguous(), x)
    by_key = left @ torch.kron(x, (x @ query).contiguous()) @ commutation
    by_value = torch.kron(torch.eye(value.shape[1], dtype=torch.float64), (attention @ x).contiguous())
    return [by_query, by_key, by_value], spread, attention


def test_29_kronecker_forms_of_the_attention_jacobian() -> None:
    n, dim, width = 7, 5, 3
    x, weights = normal(n, dim), [normal(dim, width, seed=seed) * 0.5 for seed in (1, 2, 3)]
    analytic, _, _ = attention_jacobians(x, *weights)

    def output(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return (x @ query @ key.T @ x.T).softmax(-1) @ x @ value

    automatic = torch.func.jacrev(output, argnums=(0, 1, 2))(*weights)
    for name, formula, jacobian in zip("QKV", analytic, automatic, strict=True):
        exact = column_major(jacobian, (n, width), (dim, width))
        record(CONDITIONED, "prop. 3.1", f"|∂A/∂W_{name} - autograd|", "< 1e-12", (formula - exact).abs().max())


def jacobian_bound(x: Tensor, query: Tensor, key: Tensor, value: Tensor) -> tuple[float, float]:
    """Measured κ of the Jacobian by (W_Q, W_K, W_V), and Theorem 3.1's bound, on nonzero singular values."""
    jacobians, spread, attention = attention_jacobians(x, query, key, value)
    measured = nonzero_kappa(torch.cat(jacobians, 1))
    own = nonzero_kappa(x)
    factors = nonzero_kappa(value) * (nonzero_kappa(query) + nonzero_kappa(key))
    return measured, own**3 * nonzero_kappa(spread) * factors + own * nonzero_kappa(attention)


@pytest.mark.parametrize(("n", "dim", "width"), [(12, 6, 3), (16, 8, 4), (8, 16, 4)])
def test_29_jacobian_bound(n: int, dim: int, width: int) -> None:
    violations, gaussian, conditioned = 0, [], []
    for trial in range(34):
        x = normal(n, dim, seed=trial)
        draws = [normal(dim, width, seed=f"{part}{trial}") / dim**0.5 for part in "qkv"]
        measured, bound = jacobian_bound(x, *draws)
        violations += measured > bound
        gaussian.append(bound)
        eye = torch.eye(dim, width, dtype=torch.float64)
        semi = [haar(dim, width, torch_rng(trial, part)) for part in "qk"]
        scale = float(draws[0].norm() / semi[0].norm())  # the same size, so that only the conditioning differs
        measured, bound = jacobian_bound(x, semi[0] * scale, semi[1] * scale, eye)
        violations += measured > bound
        conditioned.append(bound)
    record(CONDITIONED, "thm. 3.1", f"κ(J) above the bound, 68 trials at {n}, {dim}, {width}", 0, violations)
    ratio = torch.tensor(gaussian).median() / torch.tensor(conditioned).median()
    record(CONDITIONED, "prop. 3.2", f"median bound, gaussian / conditioned, at {n}, {dim}, {width}", "> 2", ratio)


def test_29_softmax_jacobian_is_singular() -> None:
    spread = softmax_jacobian(normal(6, 6).softmax(-1))
    record(CONDITIONED, "lemma 3.1", "‖Λ 1‖: Λ is singular", "< 1e-12", spread.reshape(6, 6, 6, 6).sum(2).abs().max())
    found = condition_number(spread)
    record(CONDITIONED, "lemma 3.1", "κ(Λ) is flagged as rank deficient", 1, bool(found.rank_deficient))


def test_30_linear_attention_cubes_the_condition_number() -> None:
    violations = 0
    for trial in range(200):
        dim = 2 + trial % 7
        x = normal(dim + trial % 9, dim, seed=trial)
        query, key, value = (normal(dim, dim, seed=f"{part}{trial}") for part in "qkv")
        output = x @ query @ key.T @ x.T @ x @ value
        values = torch.linalg.svdvals(output)[:dim]  # rank dim: the output is N × dim with N ≥ dim
        constant = kappa(query) * kappa(key) * kappa(value)
        violations += bool(values[0] / values[-1] > constant * kappa(x) ** 3 * (1 + 1e-9))
    record(ALWAYS, "prop. 4.1", "κ(SA(X)) above κ(W_Q) κ(W_K) κ(W_V) κ(X)³, of 200", 0, violations)


GRID = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)


def test_31_svd_token_graying() -> None:
    x = patches(bundled_photos(4, 112), 16)
    before = torch.linalg.svdvals(x)
    u, _, vh = torch.linalg.svd(x, full_matrices=False)
    means = []
    for eps in GRID:
        gray = svd_graying(x, eps)
        after = torch.linalg.svdvals(gray)
        error = ((after[:, 0] / after[:, -1]).log() - eps * (before[:, 0] / before[:, -1]).log()).abs().max()
        record(ALWAYS, "alg. 1", f"|ln κ(X') - ε ln κ(X)|, ε={eps}", "< 1e-6", error)
        record(
            ALWAYS, "alg. 1", "the largest singular value stays", 0, (after[:, 0] / before[:, 0] - 1).abs().max(), 1e-12
        )
        core = u.mT @ gray @ vh.mT
        rest = (core - torch.diag_embed(core.diagonal(dim1=-2, dim2=-1))).abs().max() / before.max()
        record(ALWAYS, "alg. 1", "the singular vectors stay", "< 1e-10", rest)
        means.append((after[:, 0] / after[:, -1]).log().mean())
    record(ALWAYS, "alg. 1", "ε = 1 is the identity", "< 1e-10", (svd_graying(x, 1.0) - x).abs().max())
    record(ALWAYS, "table 3", "ln κ grows with ε: least increase", "> 0", torch.stack(means).diff().min())


def test_32_dct_token_graying() -> None:
    x = patches(bundled_photos(4, 224), 16)
    means = []
    for eps in GRID:
        gray = dct_graying(x, eps)
        means.append(kappa(gray).log().mean())
    record(ALWAYS, "alg. 2", "ε = 1 is the identity", "< 1e-10", (dct_graying(x, 1.0) - x).abs().max())
    record(ALWAYS, "table 3", "ln κ grows with ε: least increase", "> 0", torch.stack(means).diff().min())
    change = [(function(x, 0.95) - x).norm() / x.norm() for function in (dct_graying, svd_graying)]
    record(ALWAYS, "alg. 2", "change of the tokens at 0.95, DCT / SVD", "> 1.5", change[0] / change[1])


@pytest.mark.parametrize("dim", [64, 256, pytest.param(1024, marks=pytest.mark.slow)])
def test_36_drift_of_spectral_and_sign_updates(dim: int) -> None:
    eta = 1e-3
    weight, gradient = haar(dim, dim, torch_rng(0, "w")), normal(dim, dim)
    u, _, vh = torch.linalg.svd(gradient)
    identity = torch.eye(dim, dtype=torch.float64)

    def drift(update: Tensor) -> Tensor:
        moved = weight - eta * update
        return torch.linalg.matrix_norm(moved.T @ moved - identity, 2)

    spectral, sign = drift(u @ vh), drift(gradient.sign())
    record(QUANTIZATION, "lemma 8", f"drift of a spectral update, d={dim}", f"<= {2 * eta + eta**2}", spectral, 1e-12)
    record(QUANTIZATION, "lemma 8", "and the bound is met", f"> {1.9 * eta}", spectral)
    record(QUANTIZATION, "lemma 10", f"drift, sign / (spectral √d), d={dim}", "1.1..1.9", sign / spectral / dim**0.5)
    draws = normal(8 if dim < 1000 else 1, dim, dim).sign()
    norm = torch.linalg.matrix_norm(draws, 2).mean() / dim**0.5
    record(QUANTIZATION, "lemma 10", f"‖sign(G)‖₂/√d, d={dim}", 1.95, norm, 0.07)
