from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dinoskip.optim.layout import as_matrix, merge_from_left, merge_from_right, row_blocks, tiles

shapes = st.lists(st.integers(1, 9), min_size=1, max_size=5).map(tuple)


@given(shapes, st.integers(1, 60))
def test_merging_keeps_order_and_size_and_could_go_no_further(shape: tuple[int, ...], limit: int) -> None:
    for merged in (merge_from_left(shape, limit), merge_from_right(shape, limit)):
        assert math.prod(merged) == math.prod(shape)
        bounds = np.cumprod(shape).tolist()
        assert set(np.cumprod(merged).tolist()) <= {*bounds, 1}
        for size in merged:
            assert size <= limit or size in shape


def test_merging_as_the_references_do() -> None:
    assert merge_from_left((12, 3, 4, 4), 48) == (36, 16)
    assert merge_from_left((1, 1, 8), 10) == (8,)
    assert merge_from_left((64, 32), 48) == (64, 32)
    assert merge_from_left((), 5) == (1,)
    assert merge_from_right((12, 3, 4, 4), 72) == (12, 48)
    assert merge_from_right((1, 1, 4), 72) == (4,)
    assert merge_from_right((6, 8), 72) == (48,)


def test_kernels_become_matrices_and_tokens_stay() -> None:
    assert as_matrix((384, 3, 16, 16)) == (384, 768)
    assert as_matrix((1, 197, 384)) == (1, 197, 384)
    assert as_matrix((1, 1, 8)) == (1, 1, 8)
    assert as_matrix((5, 1, 3, 3)) == (5, 9)


@given(st.lists(st.integers(1, 12), min_size=1, max_size=3).map(tuple), st.integers(1, 13))
def test_tiles_cover_everything_once(shape: tuple[int, ...], limit: int) -> None:
    pieces, seen = tiles(shape, limit), np.zeros(shape, int)
    for index, piece in enumerate(pieces):
        seen[piece.cut if piece.cut is not None else ...] += 1
        assert max(piece.dims) <= limit
        assert all(piece.sided)
        assert (piece.index, piece.count) == (index, len(pieces))
    assert (seen == 1).all()


def test_row_blocks_must_be_equal() -> None:
    pieces = row_blocks((12, 4), (True, True), 3)
    assert [piece.dims for piece in pieces] == [(4, 4)] * 3
    assert [piece.label("basis_0") for piece in pieces] == ["piece0_basis_0", "piece1_basis_0", "piece2_basis_0"]
    for shape in ((10, 4), (12,)):
        with pytest.raises(ValueError, match="3 blocks of rows"):
            row_blocks(shape, (True,) * len(shape), 3)
