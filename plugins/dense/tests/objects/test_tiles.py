"""MaskCut on graphs without a matrix against dense ones."""

from __future__ import annotations

import numpy as np
import pytest

from dinoskip_dense.objects import maskcut
from tests.eval.tokencut.test_tiles import GRID, features, without_a_matrix

__all__ = ["without_a_matrix"]


def test_maskcut_masks_what_it_found_and_leaves_the_features(
    without_a_matrix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = features(5)
    before = tokens.copy()
    large = maskcut(tokens, GRID)
    np.testing.assert_array_equal(tokens, before)
    monkeypatch.undo()
    for mine, theirs in zip(large, maskcut(tokens, GRID), strict=True):
        assert (mine.is_cut, mine.seed) == (theirs.is_cut, theirs.seed)
        np.testing.assert_array_equal(mine.mask, theirs.mask)
        np.testing.assert_array_equal(mine.exclusive, theirs.exclusive)
    assert large[0].mask.any()
