"""Linear heads and their file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from dinoskip.errors import DataError
from dinoskip.io.files import save_tensors
from eval.probe.heads import LinearHead, load_heads, predict, save_heads


def test_several_blocks_are_a_concatenation_that_is_never_made() -> None:
    rng = torch.Generator().manual_seed(0)
    tokens = {b: torch.randn(6, 5, generator=rng) for b in (2, 7)}
    head = LinearHead({b: torch.randn(4, 5, generator=rng) for b in (2, 7)}, torch.randn(4, generator=rng))
    whole = torch.cat([tokens[2], tokens[7]], 1) @ torch.cat([head.weights[2], head.weights[7]], 1).T + head.bias
    torch.testing.assert_close(head.logits(tokens), whole)
    wanted = F.interpolate(whole.T.reshape(1, 4, 2, 3), size=(9, 11), mode="bilinear").argmax(1)[0]
    found = predict(head, tokens, (2, 3), (9, 11))
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, wanted.numpy())


def test_predict_takes_plain_arrays() -> None:
    head = LinearHead({3: torch.tensor([[1.0], [-1.0]])}, torch.zeros(2))
    tokens = np.array([[1.0], [-1.0]], dtype=np.float16)
    assert predict(head, tokens, (1, 2), (2, 4)).tolist() == [[0, 0, 1, 1]] * 2


def test_file_round_trip(tmp_path: Path) -> None:
    rng = torch.Generator().manual_seed(1)

    def head(*blocks: int) -> LinearHead:
        return LinearHead({b: torch.randn(3, 4, generator=rng) for b in blocks}, torch.randn(3, generator=rng))

    heads = [head(2), head(10), head(2, 10)]
    save_heads(tmp_path / "heads.safetensors", heads, {"classes": ["a", "b", "c"]})
    loaded, info = load_heads(tmp_path / "heads.safetensors")
    assert info == {"classes": ["a", "b", "c"]}
    assert [h.blocks for h in loaded] == [(2,), (10,), (2, 10)]
    for have, want in zip(loaded, heads, strict=True):
        torch.testing.assert_close(have.bias, want.bias, rtol=0, atol=0)
        for block in want.blocks:
            torch.testing.assert_close(have.weights[block], want.weights[block], rtol=0, atol=0)
    save_tensors(tmp_path / "other.safetensors", {"a": torch.zeros(1)})
    with pytest.raises(DataError, match="no linear heads"):
        load_heads(tmp_path / "other.safetensors")
