from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dinoskip.init import scaled_uniform_orthogonal_
from dinoskip.init.orthogonal import haar, haar_, noise_matrix, spectral_factors
from dinoskip.runtime.randomness import torch_rng


@settings(max_examples=20, deadline=None)
@given(rows=st.integers(1, 24), columns=st.integers(1, 24), seed=st.integers(0, 99))
def test_scaled_uniform_orthogonal(rows: int, columns: int, seed: int) -> None:
    weight = torch.full((rows, columns), torch.nan, dtype=torch.float64)
    assert scaled_uniform_orthogonal_(weight, torch_rng(seed)) is weight
    gain = max((rows / columns) ** 0.5, 1.0)
    assert torch.allclose(torch.linalg.svdvals(weight), torch.tensor(gain, dtype=torch.float64), atol=1e-12)


def test_mlp_of_a_vit_small() -> None:
    """Check 11: fc2 rows unit, fc1 columns of norm 2 and rows of mean square 1, q-gain 1 through both layers."""
    fc1 = scaled_uniform_orthogonal_(torch.empty(1536, 384), torch_rng(0)).double()
    fc2 = scaled_uniform_orthogonal_(torch.empty(384, 1536), torch_rng(1)).double()
    assert torch.allclose(fc2.norm(dim=1), torch.ones(384, dtype=torch.float64), atol=1e-6)
    assert torch.allclose(fc1.norm(dim=0), torch.full((384,), 2.0, dtype=torch.float64), atol=1e-6)
    squares = fc1.square().sum(1)
    assert squares.mean() == pytest.approx(1.0, abs=1e-6)
    assert 0.75 < squares.min() < squares.max() < 1.3
    x = torch.randn(256, 384, dtype=torch.float64)
    hidden = x @ fc1.T
    assert hidden.square().mean() / x.square().mean() == pytest.approx(1.0, abs=1e-6)
    y = torch.randn(256, 1536, dtype=torch.float64)
    assert (y @ fc2.T).square().mean() / y.square().mean() == pytest.approx(1.0, abs=0.02)


def test_haar_has_no_preferred_direction() -> None:
    """QR without the sign correction gives a diagonal of mean far below 0; Haar's is 0 ± 1/sqrt(draws · dim)."""
    draws = torch.stack([haar(6, 6, torch_rng(seed)) for seed in range(400)])
    means = draws.mean(0)
    assert means.abs().max() < 4 * (400 * 6) ** -0.5
    assert draws.square().mean(0).sub(1 / 6).abs().max() < 0.06


def test_dtype_is_cast_last_and_default_dtype_ignored() -> None:
    exact = haar(5, 3, torch_rng(1))
    half = haar_(torch.empty(5, 3, dtype=torch.bfloat16), torch_rng(1))
    assert torch.equal(half, exact.bfloat16())
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.equal(haar_(torch.empty(5, 3, dtype=torch.float32), torch_rng(1)), exact.float())
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("noise", ["normal", "uniform"])
def test_noise_has_variance_one_over_dim(noise: str) -> None:
    z = noise_matrix(200, noise, torch_rng(2))  # type: ignore[arg-type]
    assert z.mean().abs() < 4 / 200 / 200**0.5
    assert z.var() * 200 == pytest.approx(1.0, abs=0.03)
    if noise == "uniform":
        assert z.abs().max() <= (3 / 200) ** 0.5


@settings(max_examples=15, deadline=None)
@given(dim=st.integers(2, 30), data=st.data(), seed=st.integers(0, 99))
def test_spectral_factors_are_the_best_approximation(dim: int, data: st.DataObject, seed: int) -> None:
    rank = data.draw(st.integers(1, dim))
    matrix = 1.8 * noise_matrix(dim, "normal", torch_rng(seed)) + torch.eye(dim, dtype=torch.float64)
    a, b = spectral_factors(matrix, rank)
    u, s, vh = torch.linalg.svd(matrix)
    assert torch.allclose(a @ b.T, u[:, :rank] * s[:rank] @ vh[:rank], atol=1e-8)
    # a singular value near zero, which no rank below dim keeps at ViT shapes, is the only one known less well
    kept = int((s[:rank] > 1e-3).sum())
    for factor in (a[:, :kept], b[:, :kept]):
        assert torch.allclose(factor.T @ factor, torch.diag(s[:kept]), atol=1e-8)
