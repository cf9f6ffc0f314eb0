"""The bilateral solver (Barron and Poole, ECCV 2016): a map made smooth where the photograph is, by its edges.

Pixels are gathered in the cells of a grid over place and colour; of all maps constant in a cell, the one is sought that
is close to the target and changes little between neighbouring cells (equations 2 to 8 of the paper). Sizes and numbers
of iterations are those of TokenCut's ``bilateral_solver.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse
import scipy.sparse.linalg
from numpy.typing import NDArray

F64 = NDArray[np.float64]
SIGMA_PLACE, SIGMA_LUMA, SIGMA_CHROMA = 16, 16, 8  # a cell's sides: pixels, levels of 0..255
SMOOTHNESS = 256.0  # lambda of the paper's equation 1, by TokenCut's code
CONFIDENCE = 0.999  # of the target, at every pixel
LEAST_DIAGONAL = 1e-5  # of the preconditioner
BALANCING = 10  # iterations that make the blur's rows and columns add up alike
ITERATIONS, TOLERANCE = 25, 1e-5  # of conjugate gradients
# From RGB to YCbCr of JPEG (JFIF), of which cells take luma and chroma.
_YUV = np.array([[0.299, 0.587, 0.114], [-0.168736, -0.331264, 0.5], [0.5, -0.418688, -0.081312]])


@dataclass(frozen=True, eq=False)
class BilateralGrid:
    """The occupied cells of a photograph, M of them.

    ``cell`` int (H·W,) is each pixel's cell; ``smoothness`` (M, M) is Dm - Dn B Dn with B the blur by 1 2 1 along each
    axis, Dn and Dm the diagonals that make it balanced.
    """

    cell: NDArray[np.int64]
    shape: tuple[int, int]
    smoothness: scipy.sparse.csr_array

    @classmethod
    def of(cls, photo: NDArray[np.uint8]) -> BilateralGrid:
        """Return the grid of a photograph uint8 (H, W, 3)."""
        height, width = photo.shape[:2]
        colour = photo.reshape(-1, 3) @ _YUV.T + (0, 128, 128)
        place = np.indices((height, width)).reshape(2, -1).T
        sides = np.array([SIGMA_PLACE, SIGMA_PLACE, SIGMA_LUMA, SIGMA_CHROMA, SIGMA_CHROMA])
        cells = (np.concatenate([place, colour], axis=1) / sides).astype(np.int64)  # nothing is below 0
        span = cells.max(0) + 3  # with room for neighbours that are not there
        numbers, cell = np.unique(np.ravel_multi_index((cells + 1).T, span), return_inverse=True)
        blur = 2.0 * len(sides) * scipy.sparse.eye_array(len(numbers), format="csr")
        steps = np.cumprod([1, *span[:0:-1]])[::-1]
        for step in steps:
            at = np.searchsorted(numbers, numbers + step)
            has = np.flatnonzero((at < len(numbers)) & (numbers[np.minimum(at, len(numbers) - 1)] == numbers + step))
            beside = scipy.sparse.coo_array((np.ones(len(has)), (has, at[has])), shape=blur.shape).tocsr()
            blur = blur + beside + beside.T
        mass, balance = np.bincount(cell, minlength=len(numbers)).astype(np.float64), np.ones(len(numbers))
        for _ in range(BALANCING):
            balance = np.sqrt(balance * mass / (blur @ balance))
        mass = balance * (blur @ balance)  # so that it is balanced after any number of iterations
        weights = scipy.sparse.diags_array(balance)
        smoothness = (scipy.sparse.diags_array(mass) - weights @ blur @ weights).tocsr()
        return cls(cell.reshape(-1), (height, width), smoothness)


def solve(
    grid: BilateralGrid, targets: NDArray[np.floating], *, iterations: int = ITERATIONS, tolerance: float = TOLERANCE
) -> F64:
    """Return the smoothed maps float64 (L, H, W) of ``targets`` (L, H, W), which may leave 0..1 a little."""
    count = grid.smoothness.shape[0]
    weight = CONFIDENCE * np.bincount(grid.cell, minlength=count)
    system = (SMOOTHNESS * grid.smoothness + scipy.sparse.diags_array(weight)).tocsr()
    inverse = scipy.sparse.diags_array(1 / np.maximum(system.diagonal(), LEAST_DIAGONAL))
    maps = np.empty(targets.shape)
    for out, target in zip(maps, targets, strict=True):
        right = CONFIDENCE * np.bincount(grid.cell, target.ravel(), minlength=count)
        cells, _ = scipy.sparse.linalg.cg(
            system, right, x0=right / weight, rtol=tolerance, atol=0.0, maxiter=iterations, M=inverse
        )
        out[:] = cells[grid.cell].reshape(grid.shape)
    return maps
