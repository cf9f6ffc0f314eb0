from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dinoskip.models.rank_collapse import condition_number, effective_rank, token_cosine


@settings(max_examples=15, deadline=None)
@given(rows=st.integers(1, 9), columns=st.integers(1, 9), seed=st.integers(0, 99))
def test_condition_number_is_numpys(rows: int, columns: int, seed: int) -> None:
    matrices = torch.randn(3, rows, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    found = condition_number(matrices)
    assert np.allclose(found.kappa.numpy(), [np.linalg.cond(m) for m in matrices.numpy()], rtol=1e-6)
    assert not found.rank_deficient.any()


def test_condition_number_is_cut_where_it_is_noise() -> None:
    singular = torch.diag(torch.tensor([1.0, 1e-30]))
    found = condition_number(torch.stack([singular, torch.zeros(2, 2), torch.eye(2)]))
    assert found.rank_deficient.tolist() == [True, True, False]
    assert found.kappa.tolist() == [2.0**52, 2.0**52, 1.0]


def test_token_cosine_by_brute_force() -> None:
    x = torch.randn(2, 5, 7, dtype=torch.float64)
    pairs = [
        torch.nn.functional.cosine_similarity(x[b, i], x[b, j], dim=0)
        for b in range(2)
        for i in range(5)
        for j in range(5)
        if i != j
    ]
    assert token_cosine(x) == pytest.approx(float(torch.stack(pairs).mean()), abs=1e-12)
    assert token_cosine(x[:, :1].expand(2, 5, 7) * torch.arange(1, 6).view(1, 5, 1)) == pytest.approx(1.0)


def test_effective_rank_of_known_spectra() -> None:
    assert effective_rank(torch.eye(4)[None]) == pytest.approx(4.0)
    assert effective_rank(torch.ones(1, 5, 3)) == pytest.approx(1.0)
    values = torch.tensor([3.0, 1.0])
    expected = math.exp(-(0.75 * math.log(0.75) + 0.25 * math.log(0.25)))
    assert effective_rank(torch.stack([torch.diag(values)] * 2)) == pytest.approx(expected)


def test_shapes_are_checked() -> None:
    for x in (torch.zeros(3, 4), torch.zeros(1, 1, 4)):
        with pytest.raises(ValueError, match="tokens must be"):
            token_cosine(x)
        with pytest.raises(ValueError, match="tokens must be"):
            effective_rank(x)
