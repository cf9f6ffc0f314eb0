"""Symmetric products by one triangle against NumPy's."""

from __future__ import annotations

import numpy as np
import pytest

from eval.symmetric import symmetric_product


@pytest.mark.parametrize("n", [1, 2, 7, 64, 257])
def test_reads_the_lower_triangle_alone(n: int) -> None:
    rng = np.random.default_rng(n)
    matrix, vector = rng.standard_normal((n, n)), rng.standard_normal(n)
    full = np.tril(matrix) + np.tril(matrix, -1).T
    matrix[np.triu_indices(n, 1)] = np.nan
    np.testing.assert_allclose(symmetric_product(matrix, vector), full @ vector, atol=1e-12)
    np.testing.assert_allclose(symmetric_product(matrix, vector, 0.5), 0.5 * (full @ vector), atol=1e-12)


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
