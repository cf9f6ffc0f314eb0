"""LOST against the published procedure written out token by token, and its degenerate inputs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eval.tokencut.graph import lengths, normalise, similarities
from eval.tokencut.lost import grow, lost

Grid = tuple[int, int]
GRIDS = [(9, 12), (1, 30), (12, 9), (3, 3), (12, 11)]


def tokens(seed: int, grid: Grid, noise: float) -> np.ndarray:
    """Descriptors of two regions and noise, of different lengths."""
    rng = np.random.default_rng(seed)
    labels = np.zeros(grid, dtype=int)
    r, c = rng.integers(grid[0]), rng.integers(grid[1])
    labels[r : r + 1 + grid[0] // 2, c : c + 1 + grid[1] // 2] = 1
    x = rng.standard_normal((2, 8))[labels.ravel()] + noise * rng.standard_normal((labels.size, 8))
    return (x * rng.uniform(0.1, 10, (labels.size, 1))).astype(np.float32)


def written_out(x: np.ndarray, grid: Grid, k: int) -> tuple[int, list[int], np.ndarray, tuple[int, int, int, int]]:
    """Seed, tied tokens, mask and box by loops over float64 products of the features themselves."""
    a = x.astype(np.float64) @ x.T.astype(np.float64)
    n = len(x)
    degree = [sum(a[i, j] > 0 for j in range(n) if j != i) for i in range(n)]
    order = sorted(range(n), key=lambda i: degree[i])
    seed = order[0]
    similar = [p for p in order[:k] if a[seed, p] > 0]
    mask = np.array([sum(a[i, j] for i in similar) > 0 for j in range(n)]).reshape(grid)
    todo, seen = [divmod(seed, grid[1])], set()
    while todo:
        r, c = todo.pop()
        if (r, c) in seen or not (0 <= r < grid[0] and 0 <= c < grid[1]) or not mask[r, c]:
            continue
        seen.add((r, c))
        todo += [(r - 1, c), (r + 1, c), (r, c - 1), (r, c + 1)]
    rows, columns = [r for r, _ in seen], [c for _, c in seen]
    tied = [i for i in range(n) if degree[i] == degree[seed]]
    return seed, tied, mask, (min(columns), min(rows), max(columns) + 1, max(rows) + 1)


@given(
    seed=st.integers(0, 10**6),
    grid=st.sampled_from(GRIDS),
    noise=st.sampled_from([0.3, 1.0, 3.0]),
    k=st.sampled_from([1, 5, 100]),
)
@settings(max_examples=50, deadline=None)
def test_equals_the_procedure_written_out(seed: int, grid: Grid, noise: float, k: int) -> None:
    x = tokens(seed, grid, noise)
    unit = normalise(torch.from_numpy(x)).numpy().astype(np.float64)
    if np.abs(unit @ unit.T).min() < 1e-6:
        return  # a sign that rounding may turn
    expected_seed, tied, mask, box = written_out(x, grid, k)
    found = lost(x, grid, k)
    assert found.seed == expected_seed
    assert found.tied.tolist() == tied
    assert found.box == box
    np.testing.assert_array_equal(found.mask, mask)
    assert found.component.sum() <= mask.sum()
    assert not found.degenerate


def test_batch_of_grids_equals_single_images() -> None:
    grids = [(9, 12), (12, 9), (6, 18)]
    images = [tokens(seed, grid, 1.0) for seed, grid in enumerate(grids)]
    batch = torch.from_numpy(np.stack(images))
    found = grow(similarities(normalise(batch)), lengths(batch), grids, 100)
    for x, grid, one in zip(images, grids, found, strict=True):
        alone = lost(torch.from_numpy(x), grid)
        assert (one.seed, one.box) == (alone.seed, alone.box)
        np.testing.assert_array_equal(one.mask, alone.mask)


def test_a_zero_token_is_the_seed_and_there_is_no_object() -> None:
    x = tokens(1, (9, 12), 0.5)
    x[40] = 0
    found = lost(x, (9, 12))
    assert found.degenerate
    assert (found.seed, found.box) == (40, (-1, -1, -1, -1)), "its cell until 0.2: like nothing, it is no object"
    assert not found.mask.any()
    assert not found.component.any()
    assert not found.ambiguous


def test_constant_features_and_one_token_are_the_whole_image() -> None:
    for grid in [(3, 4), (1, 1)]:
        found = lost(np.ones((grid[0] * grid[1], 5)), grid)
        assert (found.seed, found.box, found.degenerate) == (0, (0, 0, grid[1], grid[0]), False)
        assert len(found.tied) == grid[0] * grid[1]


def test_squares_beyond_float32() -> None:
    x = tokens(3, (9, 12), 1.0)
    assert lost(x * np.float32(1e30), (9, 12)).box == lost(x, (9, 12)).box


@pytest.mark.parametrize(
    ("x", "grid", "message"),
    [
        (np.ones((6, 4)), (2, 4), "do not fit"),
        (np.ones((2, 6, 4)), (2, 3), "do not fit"),
        (np.full((6, 4), np.inf), (2, 3), "finite"),
        (np.ones((6, 4)) * 1j, (2, 3), "real"),
    ],
)
def test_bad_input_is_a_value_error(x: np.ndarray, grid: Grid, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lost(x, grid)


@pytest.mark.gpu
def test_gpu_equals_cpu() -> None:
    for seed in range(10):
        x = torch.from_numpy(tokens(seed, (12, 11), 1.0))
        fast, slow = lost(x.cuda(), (12, 11)), lost(x, (12, 11))
        assert (fast.seed, fast.box) == (slow.seed, slow.box)
