"""The nearest vectors."""

from __future__ import annotations

import numpy as np
import pytest
import torch

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
