"""Measures of token sets."""

from __future__ import annotations

import pytest
import torch

from dinoskip.diagnostics import (
    norm_outliers,
    rankme,
    stable_rank,
)


def test_ranks_and_outliers() -> None:
    eye = torch.eye(6, dtype=torch.float64)
    assert stable_rank(eye[None]) == pytest.approx(6)
    assert rankme(eye) == pytest.approx(6, rel=1e-5)
    assert rankme(torch.ones(9, 4).double()) == pytest.approx(1, abs=1e-4)
    tokens = torch.ones(1, 10, 4).double()
    tokens[0, 3] *= 7
    assert norm_outliers(tokens) == pytest.approx((7, 0.1))
