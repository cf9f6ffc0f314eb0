from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dinoskip.optim.batched import along, as_matrix, row_blocks


def test_kernels_become_matrices_and_tokens_stay() -> None:
    assert as_matrix((384, 3, 16, 16)) == (384, 768)
    assert as_matrix((1, 197, 384)) == (1, 197, 384)
    assert as_matrix((1, 1, 8)) == (1, 1, 8)
    assert as_matrix((5, 1, 3, 3)) == (5, 9)


def test_row_blocks_must_be_equal() -> None:
    pieces = row_blocks((12, 4), (True, True), 3)
    assert [piece.dims for piece in pieces] == [(4, 4)] * 3
    assert [piece.label("basis_0") for piece in pieces] == ["piece0_basis_0", "piece1_basis_0", "piece2_basis_0"]
    for shape in ((10, 4), (12,)):
        with pytest.raises(ValueError, match="3 blocks of rows"):
            row_blocks(shape, (True,) * len(shape), 3)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.data())
def test_along_contracts_one_dimension_of_every_member(core: list[int], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(core) - 1))
    generator = torch.Generator().manual_seed(math.prod(core))
    stack = torch.randn(2, *core, generator=generator, dtype=torch.float64)
    matrices = torch.randn(2, core[at], core[at], generator=generator, dtype=torch.float64)
    for i, result in enumerate(along(stack, matrices, at)):
        expected = torch.tensordot(stack[i], matrices[i], dims=[[at], [0]]).movedim(-1, at)
        torch.testing.assert_close(result, expected)
