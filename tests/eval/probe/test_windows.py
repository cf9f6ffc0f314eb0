"""Sliding windows against mmsegmentation's slide mode written out: pad, sum, divide, resize."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from eval.probe.windows import blended_classes, blending, window_starts

Size = tuple[int, int]


def slide(
    logits: torch.Tensor, size: tuple[int, int], window: int, stride: int, label: tuple[int, int]
) -> torch.Tensor:
    """Logits (L, K, ny, nx, h, w) to classes (L, H, W), window after window at full size."""
    total = torch.zeros(*logits.shape[:2], *size, dtype=torch.float64)
    count = torch.zeros(*size)
    down, across = (max(side - window + stride - 1, 0) // stride + 1 for side in size)
    for y in range(down):
        for x in range(across):
            bottom, right = min(y * stride + window, size[0]), min(x * stride + window, size[1])
            top, left = max(bottom - window, 0), max(right - window, 0)
            part = F.interpolate(logits[:, :, y, x].double(), (bottom - top, right - left), mode="bilinear")
            total += F.pad(part, (left, size[1] - right, top, size[0] - bottom))
            count[top:bottom, left:right] += 1
    assert count.min() > 0
    return F.interpolate(total / count, label, mode="bilinear")


@settings(max_examples=40, deadline=None)
@given(
    size=st.tuples(st.integers(9, 40), st.integers(9, 40)),
    label=st.tuples(st.integers(3, 50), st.integers(3, 50)),
    window=st.integers(4, 24),
    share=st.floats(0.3, 1),
    seed=st.integers(0, 99),
)
def test_slide_mode(size: tuple[int, int], label: tuple[int, int], window: int, share: float, seed: int) -> None:
    stride = max(1, int(window * share))
    counts = [len(window_starts(side, window, stride)) for side in size]
    grid = (3, 4)
    logits = torch.randn(2, 5, *counts, *grid, generator=torch.Generator().manual_seed(seed))
    rows, columns = (blending(label[i], size[i], window, stride, grid[i], torch.device("cpu")) for i in (0, 1))
    found, exact = blended_classes(logits, rows, columns), slide(logits, size, window, stride, label)
    best = exact.max(1).values
    chosen = exact.gather(1, found[:, None])[:, 0]
    assert found.shape == (2, *label)
    torch.testing.assert_close(chosen, best, atol=1e-5, rtol=0)  # the best class, ties to rounding aside


@pytest.mark.parametrize(
    ("size", "starts"), [(512, [0]), (300, [0]), (513, [0, 1]), (683, [0, 171]), (999, [0, 341, 487])]
)
def test_where_windows_stand(size: int, starts: list[int]) -> None:
    assert window_starts(size, 512, 341) == starts
