"""Cuts that do not exist and removal of positions, against recorded outputs of float64 code written apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from eval.tokencut import TokenCut, tokencut
from tests.helpers.golden import recorded

GOLDEN, DEGENERATE = recorded("meaning", "degenerate")


def equal_cut(cut: Any, wanted: dict[str, np.ndarray], ambiguous: bool) -> None:
    """What the specification asks of a cut: all but the vector to the bit, that within 1e-5 of its largest."""
    assert isinstance(cut, TokenCut)
    assert cut.is_cut == bool(wanted["is_cut"])
    assert cut.seed == int(wanted["seed"])
    assert cut.box == tuple(wanted["box"].tolist())
    assert cut.ambiguous == ambiguous
    np.testing.assert_array_equal(cut.mask, wanted["mask"])
    np.testing.assert_array_equal(cut.component, wanted["component"])
    if not cut.is_cut:
        assert np.isnan(cut.eigenvector).all()
        return
    vector = wanted["eigenvector"]
    turned = vector if vector @ cut.eigenvector >= 0 else -vector
    np.testing.assert_allclose(cut.eigenvector, turned, rtol=0, atol=1e-5 * np.abs(vector).max())


@pytest.mark.parametrize("case", DEGENERATE, ids=lambda case: case["name"])
def test_degenerate(case: dict[str, Any]) -> None:
    with np.load(GOLDEN / case["file"], allow_pickle=False) as stored:
        data = dict(stored)
    cut = tokencut(data["features"], tuple(case["grid"]), case["tau"], case["eps"])
    equal_cut(cut, data, case["expected"]["ambiguous"])
    second, third = case["expected"]["eigenvalues"]
    assert isinstance(cut, TokenCut)
    assert cut.eigenvalue == pytest.approx(second, abs=1e-9)
    assert cut.eigenvalue + cut.gap == pytest.approx(third, abs=1e-9)
    if not cut.is_cut:
        uniform = case["expected"]["edges"] in {0, cut.mask.size * (cut.mask.size - 1) // 2}
        assert (case["expected"]["reason"] == "uniform") == uniform
