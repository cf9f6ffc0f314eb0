"""Lemmas, bounds and assumptions, among them some that do not hold as printed, a test a claim (checks 38-46)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from dinoskip.diagnostics import bundled_photos
from dinoskip.init.orthogonal import haar
from dinoskip.models.graying import dct_graying, patches, svd_graying
from dinoskip.runtime.randomness import torch_rng
from tests.conformance.fidelity import ALWAYS, CUTTING, QUANTIZATION, column_major, kappa, normal, record
from tests.conformance.test_papers_theory import attention_jacobians


def identity(size: int) -> Tensor:
    return torch.eye(size, dtype=torch.float64)


def norm(matrix: Tensor) -> Tensor:
    return torch.linalg.matrix_norm(matrix, 2)


def test_38_moments_of_the_logits_of_gaussian_tokens() -> None:
    """Two tokens of 40,000 draws: A = X Xᵀ, B = X Z Xᵀ, C = α B + β A; off the diagonal B has variance d, not 1."""
    d, draws, alpha, beta = 16, 40_000, 1.8, 1.0
    x = normal(draws, 2, d)
    gram, noise = x @ x.mT, x @ (normal(draws, d, d, seed="z") / d**0.5) @ x.mT
    logits = alpha * noise + beta * gram
    diagonal, off = (slice(None), 0, 0), (slice(None), 0, 1)
    for place, name, values, mean, variance in (
        ("eq. 14", "A_ii", gram[diagonal], d, 2 * d),
        ("eq. 15", "A_ij", gram[off], 0, d),
        ("eq. 16", "B_ii", noise[diagonal], 0, d + 2),
        ("eq. 17", "B_ij, printed 1", noise[off], 0, d),
        ("eq. 18", "C_ii", logits[diagonal], beta * d, alpha**2 * (d + 2) + beta**2 * 2 * d),
        ("eq. 19", "C_ij, printed α² + β² d", logits[off], 0, alpha**2 * d + beta**2 * d),
    ):
        record(CUTTING, place, f"mean of {name}, d = {d}", mean, values.mean(), 5 * (variance / draws) ** 0.5)
        record(CUTTING, place, f"variance of {name}, d = {d}", variance, values.var(), 0.05 * variance)


def logit_weights(dim: int, alpha: float, beta: float, seed: int) -> Tensor:
    """W^Q W^Kᵀ as the initialisation has it, at full rank (eq. 11)."""
    return alpha * normal(dim, dim, seed=f"z{seed}") / dim**0.5 + beta * identity(dim)


def by_tokens(x: Tensor, weights: Tensor, softmax: bool = True) -> Tensor:
    """∂vec(A)/∂vec(X), or ∂vec(M)/∂vec(X) of the logits M."""
    n, dim = x.shape

    def attend(tokens: Tensor) -> Tensor:
        logits = tokens @ weights @ tokens.T
        return logits.softmax(-1) if softmax else logits

    return column_major(torch.func.jacrev(attend)(x), (n, n), (n, dim))


def test_39_derivative_of_the_softmax() -> None:
    """‖J_A‖ ≤ 2 (1 - least A_ii) and the chain rule hold of Lemma 1; eq. 21 leaves out ‖∂M/∂X‖."""
    above = {"diagonal": 0, "chain": 0, "printed": 0}
    for trial in range(200):
        x, weights = normal(6, 8, seed=trial), logit_weights(8, 0.1, 1.0, trial)
        attention = (x @ weights @ x.T).softmax(-1)
        by_logits = norm(torch.diag_embed(attention) - attention[:, :, None] * attention[:, None]).max()
        derivative = norm(by_tokens(x, weights))
        above["diagonal"] += bool(by_logits > 2 * (1 - attention.diagonal().min()) * (1 + 1e-12))
        above["chain"] += bool(derivative > by_logits * norm(by_tokens(x, weights, softmax=False)) * (1 + 1e-12))
        above["printed"] += bool(derivative > by_logits)
    record(CUTTING, "eq. 22", "‖∂A/∂M‖ above 2 (1 - least A_ii), of 200", 0, above["diagonal"])
    record(CUTTING, "lemma 1", "‖∂A/∂X‖ above ‖∂A/∂M‖ ‖∂M/∂X‖, of 200", 0, above["chain"])
    record(CUTTING, "eq. 21", "‖∂A/∂X‖ above ‖∂A/∂M‖, the printed bound, of 200", "> 190", above["printed"])


def test_39_the_derivative_falls_with_the_diagonal_and_not_with_the_noise() -> None:
    def median(alpha: float, beta: float) -> Tensor:
        draws = [norm(by_tokens(normal(6, 32, seed=s), logit_weights(32, alpha, beta, s))) for s in range(20)]
        return torch.stack(draws).median()

    norms = torch.stack([median(0.1, beta) for beta in (0.25, 0.5, 1.0, 2.0)])
    record(CUTTING, "lemma 1", "ln ‖∂A/∂X‖ against β: largest slope", "< -1", (norms.log().diff()).max())
    ratio = median(0.0, 0.25) / norms[0]
    record(CUTTING, "lemma 1", "‖∂A/∂X‖ at α = 0 / at α = 0.1: O(α e^-β) would be 0", "0.5..2", ratio)


def test_40_worst_block_bounds_the_jacobian_only_where_blocks_are_wide() -> None:
    """J Jᵀ is the sum of the blocks' J_l J_lᵀ: with full row rank κ(J)² ≤ Σ s_max² / Σ s_min², so eq. 6 holds."""
    wide = tall = 0
    for trial in range(300):
        short = [normal(6, 8 + trial % 5, seed=f"{part}{trial}") * (1 + part) for part in range(3)]
        wide += bool(kappa(torch.cat(short, 1)) > max(map(kappa, short)) * (1 + 1e-12))
        long = [normal(20, 4, seed=f"t{part}{trial}") for part in range(3)]
        tall += bool(kappa(torch.cat(long, 1)) > max(map(kappa, long)))
    record(CUTTING, "eq. 6", "blocks with more parameters than outputs: κ(J) above max κ(J_l), of 300", 0, wide)
    record(CUTTING, "eq. 6", "blocks with fewer: κ(J) above max κ(J_l), of 300", "> 250", tall)
    pair = torch.tensor([[1.0, 0.6], [0.0, 0.8]], dtype=torch.float64)
    record(CUTTING, "eq. 6", "two unit columns of cosine 0.6: κ is 1 of each and 2 of both", 2, kappa(pair), 1e-12)


@pytest.mark.parametrize("dim", [4, 8, 16])
def test_41_linear_mlp(dim: int) -> None:
    """X W_up W_down with 4 d hidden units: the product is the constant; κ(W_up) κ(W_down) is not one."""
    product = factors = square = 0
    for trial in range(300):
        x, up = normal(2 * dim, dim, seed=trial), normal(dim, 4 * dim, seed=f"u{trial}")
        down = normal(4 * dim, dim, seed=f"d{trial}")
        product += bool(kappa(x @ up @ down) > kappa(up @ down) * kappa(x) * (1 + 1e-9))
        factors += bool(kappa(x @ up @ down) > kappa(up) * kappa(down) * kappa(x))
        up, down = up[:, :dim], down[:dim]
        square += bool(kappa(x @ up @ down) > kappa(up) * kappa(down) * kappa(x) * (1 + 1e-9))
    record(ALWAYS, "sec. 4.1", f"κ(MLP(X)) above κ(W_up W_down) κ(X), d = {dim}, of 300", 0, product)
    record(ALWAYS, "sec. 4.1", f"κ(MLP(X)) above κ(W_up) κ(W_down) κ(X), d hidden units, d = {dim}", 0, square)
    record(ALWAYS, "sec. 4.1", f"κ(MLP(X)) above κ(W_up) κ(W_down) κ(X), 4 d hidden units, d = {dim}", "> 100", factors)


def test_42_a_skip_does_not_bound_the_condition_number() -> None:
    """Proposition 4.2, M positive semidefinite: false as printed; with X semidefinite, too, Weyl's inequality holds."""
    printed = weyl = 0
    for trial in range(300):
        x, root, other = (normal(8, 8, seed=seed) for seed in (trial, f"g{trial}", f"y{trial}"))
        m, semidefinite = root @ root.T, other @ other.T
        printed += bool(kappa(x + m) > kappa(x) + kappa(m))
        weyl += bool(kappa(semidefinite + m) > torch.maximum(kappa(semidefinite), kappa(m)) * (1 + 1e-9))
    record(ALWAYS, "prop. 4.2", "κ(X + M) above κ(X) + κ(M), the printed bound, d = 8, of 300", "10..60", printed)
    record(ALWAYS, "prop. 4.2", "X semidefinite: κ(X + M) above max(κ(X), κ(M)), of 300", 0, weyl)
    x = torch.tensor([1.0, -1.0], dtype=torch.float64).diag()
    got = kappa(x + 0.999 * identity(2))
    record(ALWAYS, "prop. 4.2", "κ(diag(1, -1) + 0.999 I), where the printed bound is 2", 1999, got, 1e-6)


@pytest.mark.parametrize("graying", [svd_graying, dct_graying])
def test_43_graying_flattens_the_spectrum_of_attention(graying: Callable[[Tensor, float], Tensor]) -> None:
    """Fresh attention on photographs: the singular values of ∂SA/∂(W_Q, W_K, W_V), whose squares are the NTK's."""
    means = []
    for eps in (1.0, 0.9, 0.7, 0.5):
        logs = []
        for image, x in enumerate(graying(patches(bundled_photos(4, 16), 4), eps)):
            weights = [0.02 * normal(x.shape[1], 8, seed=f"{part}{image}") for part in "qkv"]
            values = torch.linalg.svdvals(torch.cat(attention_jacobians(x, *weights)[0], 1))
            logs.append(torch.stack([(values / values[0]).log().mean(), (values[-1] / values[0]).log()]))
        means.append(torch.stack(logs).mean(0))
    steps = torch.stack(means).diff(dim=0).amin(0)
    name = "SVD" if graying is svd_graying else "DCT"
    record(ALWAYS, "fig. 7, fig. 8", f"mean ln(s / s_max) grows as ε falls, {name}: least increase", "> 0", steps[0])
    record(ALWAYS, "sec. C", f"ln κ of the NTK falls with ε, {name}: least decrease", "> 0", 2 * steps[1])


def variances(residual: bool, normed: bool) -> Tensor:
    """Mean squares (8 draws, 13) before and after 12 layers W ReLU(x), W orthogonal of width 256."""
    x, found = normal(8, 256), []
    for layer in range(13):
        found.append(x.square().mean(1))
        inner = F.relu(F.layer_norm(x, (256,)) if normed else x)
        x = (x if residual else 0) + inner @ haar(256, 256, torch_rng(layer, "growth"))
    return torch.stack(found, 1)


def test_44_variance_without_and_with_normalisation() -> None:
    where = "lemma 1, lemma 5"
    for name, residual, factor, end in (("residual-free", False, 0.5, 0.5), ("residual", True, 1.5, 7.0)):
        rates = variances(residual, normed=False).log().diff().mean().exp()
        record(QUANTIZATION, where, f"{name}, ReLU, no norm: factor of q a layer", factor, rates, 0.05 * factor)
        last = variances(residual, normed=True)[:, 12].mean()
        record(QUANTIZATION, where, f"{name}, ReLU, norm: q after 12 layers", end, last, 0.1 * end)
    g = torch.linspace(-12, 12, 240_001, dtype=torch.float64)
    density = (-g * g / 2).exp() / (2 * torch.pi) ** 0.5
    for q, share in ((1.0, 0.4252), (1e-4, 0.25)):  # GELU's c is no constant: it falls to 1/4 as q does
        mean = torch.trapezoid(F.gelu(g * q**0.5) ** 2 * density, g)
        record(QUANTIZATION, where, f"E GELU(z)² / q, z of variance q = {q:g}", share, mean / q, 1e-4)


def test_45_norm_of_a_sign_matrix() -> None:
    """Lemma 9 is of random signs (check 36): of all sign matrices √d is the least and d the largest, a rank-1 one's."""
    d, outside = 64, 0
    signs = torch.ones(1, 1, dtype=torch.float64)
    while len(signs) < d:
        signs = torch.cat([torch.cat([signs, signs], 1), torch.cat([signs, -signs], 1)])
    record(QUANTIZATION, "lemma 9", "‖S‖₂/√d of a Hadamard matrix", 1, norm(signs) / d**0.5, 1e-12)
    for trial in range(200):
        gradient = normal(d, 1 + trial % 8, seed=trial) @ normal(1 + trial % 8, d, seed=f"b{trial}")
        value = norm(gradient.sign()) / d**0.5
        outside += not 1 - 1e-12 <= value <= d**0.5 + 1e-12
    record(QUANTIZATION, "lemma 9", "sign(G), G of rank 1 to 8: ‖S‖₂ outside √d to d, of 200", 0, outside)
    rank_one = torch.outer(normal(d), normal(d, seed=1)).sign()
    record(QUANTIZATION, "lemma 9", "‖sign(G)‖₂/d, G of rank 1", 1, norm(rank_one) / d, 1e-12)


@pytest.mark.parametrize("d", [16, 64, 256])
def test_46_scores_of_orthogonal_queries_and_keys(d: int) -> None:
    """Lemma 14 with C = 1 a dimension. It is of two tokens; of one with itself, W^Q = W^K, the score is √d."""
    query, key = haar(d, d, torch_rng(0, "q")), haar(d, d, torch_rng(0, "k"))
    first, second = (F.layer_norm(normal(20_000, d, seed=name), (d,)) for name in "xy")
    between = ((first @ query) * (second @ key)).sum(1) / d**0.5
    record(QUANTIZATION, "lemma 14", f"variance of the score of two tokens, d = {d}", 1, between.var(), 0.05)
    own = (first @ query).square().sum(1) / d**0.5
    record(
        QUANTIZATION,
        "lemma 14",
        f"score of a token with itself, W^Q = W^K, / √d, d = {d}",
        1,
        own.mean() / d**0.5,
        1e-4,
    )
