"""Measures of token sets."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dinoskip.diagnostics import (
    Moments,
    norm_outliers,
    rankme,
    stable_rank,
)
from tests.helpers.small_network import randn


def test_ranks_and_outliers() -> None:
    eye = torch.eye(6, dtype=torch.float64)
    assert stable_rank(eye[None]) == pytest.approx(6)
    assert rankme(eye) == pytest.approx(6, rel=1e-5)
    assert rankme(torch.ones(9, 4).double()) == pytest.approx(1, abs=1e-4)
    tokens = torch.ones(1, 10, 4).double()
    tokens[0, 3] *= 7
    assert norm_outliers(tokens) == pytest.approx((7, 0.1))


@settings(deadline=None)
@given(st.lists(st.integers(1, 30), min_size=2, max_size=5), st.floats(-1e3, 1e3))
def test_moments_merge_exactly(sizes: list[int], shift: float) -> None:
    x = randn(sum(sizes), 3, seed=len(sizes)).exp() + shift
    parts = [Moments.of(part, per_channel=True) for part in x.split(sizes)]
    merged, whole = sum(parts[1:], parts[0]), Moments.of(x, per_channel=True)
    for name in ("mean", "m2", "m3", "m4"):
        torch.testing.assert_close(getattr(merged, name), getattr(whole, name), rtol=1e-7, atol=1e-6)
