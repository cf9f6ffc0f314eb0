"""MaskCut against recorded outputs of the public code's rules."""

from __future__ import annotations

import numpy as np
import pytest

from dinoskip_dense.objects import maskcut
from tests.helpers.golden import recorded

GOLDEN, CASES = recorded("dense", "maskcut")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_equals_reference(case: dict) -> None:
    with np.load(GOLDEN / case["file"], allow_pickle=False) as stored:
        data = dict(stored)
    grid = tuple(case["grid"])
    rounds = maskcut(data["feats"], grid, case["tau"], case["eps"], case["N"])
    for number, one in enumerate(rounds):
        np.testing.assert_array_equal(one.bipartition, data["bipartition"][number])
        np.testing.assert_array_equal(one.component, data["found"][number])
        np.testing.assert_array_equal(one.mask, data["mask"][number])
        np.testing.assert_array_equal(one.exclusive, data["masked"][number])
        vector = data["vec"][number]
        have = one.eigenvector.reshape(grid)
        tied = np.flatnonzero(one.eigenvector >= one.eigenvector.max() * (1 - 1e-8))
        assert one.seed == tied[0]
        assert case["seeds"][number] in tied
        tolerance = 1e-9 * np.abs(vector).max() / case["eigengap"][number]
        np.testing.assert_allclose(have, vector, rtol=0, atol=tolerance)
