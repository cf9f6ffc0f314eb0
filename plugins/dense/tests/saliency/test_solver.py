"""The bilateral solver against its equations with dense matrices."""

from __future__ import annotations

import numpy as np
import pytest

from dinoskip_dense.saliency import BilateralGrid, solve


def photograph(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (3, 4, 3)).repeat(9, 0).repeat(8, 1).astype(np.uint8)


def dense(photo: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Solve the system of the paper by its definition: cells in a dictionary, neighbours by comparing coordinates."""
    height, width = photo.shape[:2]
    r, g, b = photo.astype(np.float64).transpose(2, 0, 1)
    luma = 0.299 * r + 0.587 * g + 0.114 * b
    blue = -0.168736 * r - 0.331264 * g + 0.5 * b + 128
    red = 0.5 * r - 0.418688 * g - 0.081312 * b + 128
    cells: dict[tuple[int, ...], int] = {}
    number = np.empty((height, width), dtype=int)
    for y in range(height):
        for x in range(width):
            key = (y // 16, x // 16, int(luma[y, x] // 16), int(blue[y, x] // 8), int(red[y, x] // 8))
            number[y, x] = cells.setdefault(key, len(cells))
    at = np.array(list(cells))
    apart = np.abs(at[:, None] - at[None]).sum(-1)
    blur = 10 * np.eye(len(cells)) + (apart == 1)
    splat = np.zeros((len(cells), height * width))
    splat[number.ravel(), np.arange(height * width)] = 1
    mass, balance = splat.sum(1), np.ones(len(cells))
    for _ in range(10):
        balance = np.sqrt(balance * mass / (blur @ balance))
    smooth = np.diag(balance * (blur @ balance)) - np.diag(balance) @ blur @ np.diag(balance)
    system = 256 * smooth + np.diag(0.999 * splat.sum(1))
    return (splat.T @ np.linalg.solve(system, 0.999 * splat @ target.ravel())).reshape(height, width)


@pytest.mark.parametrize("seed", range(4))
def test_equals_the_dense_solution(seed: int) -> None:
    photo = photograph(seed)
    targets = np.random.default_rng(seed).random((2, *photo.shape[:2])) < 0.4
    maps = solve(BilateralGrid.of(photo), targets.astype(np.float64), iterations=500, tolerance=1e-12)
    np.testing.assert_allclose(maps, [dense(photo, one) for one in targets.astype(np.float64)], rtol=0, atol=1e-8)


def test_a_rough_mask_follows_the_photograph() -> None:
    photo = np.full((64, 64, 3), 40, dtype=np.uint8)
    photo[16:48, 16:48] = (200, 60, 30)
    rough = np.zeros((1, 64, 64))
    rough[0, 20:52, 12:44] = 1  # as large as the object, four pixels aside
    smooth = solve(BilateralGrid.of(photo), rough)[0] > 0.5
    assert (smooth == (photo[..., 0] == 200)).mean() > 0.99 > (rough[0].astype(bool) == (photo[..., 0] == 200)).mean()
