"""Upsampled classes against interpolate and argmax."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import eval.upsampling as upsampling
from eval.upsampling import bilinear, upsampled_classes


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 40), st.integers(1, 40))
def test_bilinear_equals_interpolate(h: int, w: int, height: int, width: int) -> None:
    x = torch.randn(2, 1, h, w, generator=torch.Generator().manual_seed(h * w))
    wanted = F.interpolate(x, size=(height, width), mode="bilinear", align_corners=False)
    torch.testing.assert_close(bilinear(height, h) @ x @ bilinear(width, w).T, wanted, atol=1e-5, rtol=1e-5)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 70), st.integers(1, 70), st.integers(1, 12), st.booleans())
def test_classes_equal_argmax_of_the_whole(h: int, w: int, height: int, width: int, classes: int, flat: bool) -> None:
    rng = torch.Generator().manual_seed(h + 7 * w + 49 * height)
    logits = torch.randn(3, classes, h, w, generator=rng)
    if flat:  # most classes lose everywhere, in different numbers a head
        logits += torch.randn(3, classes, 1, 1, generator=rng) * 4
    whole = F.interpolate(logits, size=(height, width), mode="bilinear", align_corners=False)
    found = upsampled_classes(logits, (height, width))
    lost = whole.max(1).values - whole.gather(1, found[:, None].long())[:, 0]
    assert found.shape == (3, height, width)
    assert found.dtype == torch.uint8
    assert float(lost.max()) < 1e-5  # the same class, or one as good to rounding


@pytest.mark.parametrize("classes", [21, 171])
@pytest.mark.parametrize("coarse", [4, 14])  # smooth logits, and noise, where every class may win somewhere
def test_pixels_that_rounding_decides_are_few(classes: int, coarse: int) -> None:
    rng = torch.Generator().manual_seed(classes)
    logits = F.interpolate(torch.randn(2, classes, coarse, coarse, generator=rng), size=(14, 14), mode="bilinear")
    wanted = F.interpolate(logits, size=(375, 500), mode="bilinear").argmax(1)
    assert float((upsampled_classes(logits, (375, 500)) != wanted).float().mean()) < 2e-5


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 4), st.integers(2, 9), st.integers(0, 10**6))
def test_the_first_of_equal_classes_wins(cells: int, classes: int, seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    few = torch.randint(0, 3, (2, classes, cells, cells), generator=rng).float()  # many exact ties
    size = (cells * 16, cells * 32)  # parts of a cell are sums of powers of two: nothing is rounded
    wanted = F.interpolate(few, size=size, mode="bilinear").argmax(1)
    assert (upsampled_classes(few, size) == wanted).all()


@pytest.mark.parametrize("classes", [3, 300])
def test_a_gpu_finds_the_same_by_all_pixels(classes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(5, classes, 4, 6, generator=torch.Generator().manual_seed(0))
    wanted = upsampled_classes(logits, (31, 44))
    monkeypatch.setattr(upsampling, "on_gpu", lambda _: True)
    monkeypatch.setattr(upsampling, "_PIXELS", 2 * classes * 31 * 44)  # two maps at a time
    found = upsampled_classes(logits, (31, 44))
    assert found.dtype == wanted.dtype
    assert float((found != wanted).float().mean()) < 1e-3  # rounding decides a few


def test_more_classes_than_a_byte_holds() -> None:
    logits = torch.zeros(1, 300, 2, 2)
    logits[:, 299] = 1
    assert (upsampled_classes(logits, (9, 9)) == 299).all()


class _Largest(TorchDispatchMode):
    """Notes the most values that any operation's result has."""

    values = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for one in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(one, torch.Tensor):
                self.values = max(self.values, one.numel())
        return result


def test_upsampled_logits_never_exist() -> None:
    logits = torch.randn(3, 150, 14, 14, generator=torch.Generator().manual_seed(0))
    with _Largest() as largest:
        upsampled_classes(logits, (375, 500))
    assert largest.values <= 3 * 400 * 600  # the classes themselves, padded; the logits would be 150 times as many
