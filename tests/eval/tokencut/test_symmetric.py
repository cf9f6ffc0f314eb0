"""Symmetric products by one triangle against NumPy's."""

from __future__ import annotations

import numpy as np
import pytest

from eval.tokencut.symmetric import inner_products, symmetric_product


@pytest.mark.parametrize("n", [1, 2, 7, 64, 257])
def test_reads_the_lower_triangle_alone(n: int) -> None:
    rng = np.random.default_rng(n)
    matrix, vector = rng.standard_normal((n, n)), rng.standard_normal(n)
    full = np.tril(matrix) + np.tril(matrix, -1).T
    matrix[np.triu_indices(n, 1)] = np.nan
    np.testing.assert_allclose(symmetric_product(matrix, vector), full @ vector, atol=1e-12)
    np.testing.assert_allclose(symmetric_product(matrix, vector, 0.5), 0.5 * (full @ vector), atol=1e-12)


@pytest.mark.parametrize(("n", "channels"), [(1, 5), (2, 1), (64, 7), (257, 384)])
def test_inner_products_write_the_lower_triangle_alone(n: int, channels: int) -> None:
    rows = np.random.default_rng(n).standard_normal((n, channels), dtype=np.float32)
    out = np.full((n, n), 7.0, dtype=np.float32)
    inner_products(rows, out)
    exact = rows.astype(np.float64) @ rows.T.astype(np.float64)
    np.testing.assert_allclose(np.tril(out), np.tril(exact), atol=2e-6 * channels)
    assert (out[np.triu_indices(n, 1)] == 7).all()
    with pytest.raises(ValueError, match="does not fit"):
        inner_products(rows, np.zeros((n, n + 1), np.float32))
    with pytest.raises(ValueError, match="contiguous"):
        inner_products(np.asfortranarray(np.ones((3, 2), np.float32)), np.zeros((3, 3), np.float32))
    with pytest.raises(ValueError, match="float32"):
        inner_products(rows.astype(np.float64), out)


def test_sums_of_integers_are_exact() -> None:
    rng = np.random.default_rng(0)
    edges = np.tril(rng.random((300, 300)) < 0.3).astype(np.float64)
    vector = rng.integers(-(2**42), 2**42, 300)
    full = (edges + np.tril(edges, -1).T).astype(np.int64)
    assert symmetric_product(edges, vector.astype(np.float64)).tolist() == (full @ vector).tolist()


@pytest.mark.parametrize(
    ("matrix", "vector"),
    [
        (np.ones((3, 3)), np.ones(4)),
        (np.asfortranarray(np.ones((3, 3))).T[:, ::-1], np.ones(3)),
        (np.ones((3, 3)), np.ones(6)[::2]),
        (np.ones((3, 3), np.float32), np.ones(3, np.float32)),
    ],
)
def test_what_blas_would_misread_is_refused(matrix: np.ndarray, vector: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"contiguous|float64"):
        symmetric_product(matrix, vector)
