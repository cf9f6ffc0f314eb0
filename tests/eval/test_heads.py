"""Upsampling, prediction and the file of linear heads against torch's own operations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from dinoskip.errors import DataError
from dinoskip.files import save_tensors
from eval.heads import LinearHead, bilinear, load_heads, predict, save_heads, upsampled_classes


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 40), st.integers(1, 40))
def test_bilinear_equals_interpolate(h: int, w: int, height: int, width: int) -> None:
    x = torch.randn(2, 1, h, w, generator=torch.Generator().manual_seed(h * w))
    wanted = F.interpolate(x, size=(height, width), mode="bilinear", align_corners=False)
    torch.testing.assert_close(bilinear(height, h) @ x @ bilinear(width, w).T, wanted, atol=1e-5, rtol=1e-5)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 30), st.integers(1, 30), st.integers(1, 12), st.booleans())
def test_classes_equal_argmax_of_the_whole(h: int, w: int, height: int, width: int, classes: int, flat: bool) -> None:
    rng = torch.Generator().manual_seed(h + 7 * w + 49 * height)
    logits = torch.randn(3, classes, h, w, generator=rng)
    if flat:  # most classes lose everywhere, in different numbers a head
        logits += torch.randn(3, classes, 1, 1, generator=rng) * 4
    whole = F.interpolate(logits, size=(height, width), mode="bilinear", align_corners=False)
    found = upsampled_classes(logits, (height, width))
    lost = whole.max(1).values - whole.gather(1, found[:, None])[:, 0]
    assert found.shape == (3, height, width)
    assert float(lost.max()) < 1e-5  # the same class, or one as good to rounding


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
