"""The nearest vectors."""

from __future__ import annotations

import faiss
import numpy as np
import pytest
import torch

import eval.neighbours
from dinoskip.errors import ConfigError
from eval.neighbours import Neighbours
from eval.retrieval.config import IndexName

CPU = torch.device("cpu")


def test_torch_finds_the_same_neighbours() -> None:
    rng = np.random.default_rng(0)
    memory, queries = (rng.standard_normal((n, 8)).astype(np.float32) for n in (40, 9))
    similar, where = Neighbours(memory, CPU).search(queries, 6)
    other = Neighbours._by_torch(torch.from_numpy(queries), torch.from_numpy(memory), 6)
    assert (where == other[1]).all()
    np.testing.assert_allclose(similar, other[0], rtol=1e-5)
    with pytest.raises(ConfigError, match="k: 41 neighbours were asked of 40"):
        Neighbours(memory, CPU).search(queries, 41)


def clustered(count: int, seed: int) -> np.ndarray:
    """Unit vectors (count, 16) around 50 centres."""
    centres = np.random.default_rng(0).standard_normal((50, 16))
    rng = np.random.default_rng(seed)
    vectors = centres[rng.integers(0, 50, count)] + 0.2 * rng.standard_normal((count, 16))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def test_an_exact_search_is_that_of_an_index_and_copies_nothing() -> None:
    memory, queries = clustered(3000, 1), clustered(70, 2)
    index = faiss.IndexFlatIP(16)
    index.add(memory)
    neighbours = Neighbours(memory, CPU)
    for found, expected in zip(neighbours.search(queries, 9), index.search(queries, 9), strict=True):
        np.testing.assert_array_equal(found, expected)
    memory[:] = memory[::-1].copy()
    assert (neighbours.search(queries, 1)[1] == 2999 - index.search(queries, 1)[1]).all(), "it reads the memory itself"


def test_recall_of_an_index_that_is_not_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, queries = clustered(20_000, 1), clustered(200, 2)
    exact = Neighbours(memory, CPU).search(queries, 10)[1]

    def recall() -> float:
        found = Neighbours(memory, CPU, "ivf").search(queries, 10)[1]
        return float(np.mean([len(np.intersect1d(a, b)) for a, b in zip(exact, found, strict=True)]) / 10)

    assert recall() > 0.9
    monkeypatch.setattr(eval.neighbours, "_LARGE", 10_000)  # cells found with fewer vectors
    monkeypatch.setattr(eval.neighbours, "_FEW", 10)
    assert recall() > 0.85
    parameters = Neighbours(memory, CPU, "ivf")._index.cp
    assert (parameters.max_points_per_centroid, parameters.niter) == (10, 4)


@pytest.mark.gpu
@pytest.mark.parametrize("index", ["flat", "ivf"])
def test_gpu_finds_the_same_neighbours(index: IndexName) -> None:
    rng = np.random.default_rng(0)
    memory, queries = (rng.standard_normal((n, 64)).astype(np.float32) for n in (200, 90))
    memory, queries = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (memory, queries))
    similar, where = Neighbours(memory, CPU).search(queries, 5)
    found, there = Neighbours(memory, torch.device("cuda"), index).search(queries, 5)
    assert (there == where).mean() > (0.999 if index == "flat" else 0.5)
    np.testing.assert_allclose(found[there == where], similar[there == where], atol=1e-5)
