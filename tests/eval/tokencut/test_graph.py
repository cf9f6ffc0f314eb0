"""Products with edge matrices."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from eval.tokencut.graph import symmetric_product


@pytest.mark.parametrize("n", [1, 2, 7, 64, 257])
def test_products_equal_numpys_for_arrays_and_tensors(n: int) -> None:
    rng = np.random.default_rng(n)
    matrices, vectors = rng.standard_normal((3, n, n)), rng.standard_normal((3, n))
    matrices = matrices + matrices.swapaxes(1, 2)
    wanted = 0.5 * np.einsum("bij,bj->bi", matrices, vectors)
    np.testing.assert_allclose(symmetric_product(matrices, vectors, 0.5), wanted, atol=1e-12 * n)
    tensors = symmetric_product(torch.from_numpy(matrices), torch.from_numpy(vectors), 0.5)
    np.testing.assert_allclose(tensors, wanted, atol=1e-12 * n)


def test_sums_of_integers_are_exact() -> None:
    rng = np.random.default_rng(0)
    edges = np.tril(rng.random((300, 300)) < 0.3)
    edges |= edges.T
    vector = rng.integers(-(2**42), 2**42, 300)
    found = symmetric_product(edges[None].astype(np.float64), vector[None].astype(np.float64))
    assert found[0].tolist() == (edges.astype(np.int64) @ vector).tolist()
