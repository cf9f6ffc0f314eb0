"""Frozen tokens with their label maps."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import eval.labelled as labelled
from dinoskip.errors import DataError
from eval.labelled import batchnorm_statistics

CPU = torch.device("cpu")


def test_batchnorm_statistics_are_those_of_all_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    stored = (1000 + rng.standard_normal((7, 5, 3)) * [1, 2, 0]).astype(np.float32)
    rows = np.array([0, 2, 3, 6])
    exact = stored[rows].reshape(-1, 3).astype(np.float64)
    for chunk in (2**22, 15):
        monkeypatch.setattr(labelled, "_CHUNK_VALUES", chunk)
        mean, inverse = batchnorm_statistics(stored, rows, CPU)
        np.testing.assert_allclose(mean, exact.mean(0), rtol=1e-6)
        np.testing.assert_allclose(inverse, (exact.var(0) + 1e-5) ** -0.5, rtol=1e-3)
    stored[3, 0, 0] = np.inf
    with pytest.raises(DataError, match="not finite"):
        batchnorm_statistics(stored, rows, CPU)
