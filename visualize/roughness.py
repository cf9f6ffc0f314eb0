"""Patchiness of PCA pictures as a number: Geary's C of neighbouring tokens, and a paired test."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dinoskip.results.statistics import mcnemar

ByBlock = Mapping[str, Sequence[float | None]]  # {block: a value an image, None where there is none}
Roughness = Mapping[str, Sequence[float | None]]  # {variant: a value an image}
_ROUNDING = 1e-10  # of the largest coordinate: differences below it are rounding errors


def roughness(scores: ArrayLike) -> NDArray[np.float64]:
    """Return Geary's C, float64 (...), of each picture in ``scores`` (..., h, w, k): k coordinates a token.

    The mean over all pairs of 4-neighbours of their squared difference, over twice the variance of the tokens
    (divisor n - 1); differences and variances are summed over the k coordinates::

        C = (n - 1) Σ_pairs |x_i - x_j|² / (2 · pairs · Σ_i |x_i - mean|²)

    (R. C. Geary, "The contiguity ratio and statistical mapping", The Incorporated Statistician 5(3), 1954.) Over all
    orders of the same tokens its mean is exactly 1; it nears 0 for a smooth picture and for a few
    regions of one colour each, and is 2 (n - 1) / n on a checkerboard. Shifting the coordinates, scaling all by one
    factor and turning them change nothing.
    nan where there is no pair, where all tokens are the same up to rounding (1e-10 of the largest coordinate), and
    where a coordinate is not finite. Raises ValueError for fewer than 3 axes.
    """
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim < 3:
        raise ValueError(f"scores must have the shape (..., rows, columns, coordinates), not {values.shape}")
    height, width = values.shape[-3:-1]
    pairs, axes = (height - 1) * width + height * (width - 1), (-3, -2, -1)
    if pairs < 1:
        return np.full(values.shape[:-3], np.nan)
    with np.errstate(invalid="ignore"):
        moved = values - values[..., :1, :1, :]  # exactly 0 if all tokens are one
        spread = np.abs(moved).max(axis=axes, keepdims=True)
        flat = ~(spread > _ROUNDING * np.abs(values).max(axis=axes, keepdims=True)) | ~np.isfinite(spread)
        moved = np.where(flat, np.nan, moved) / np.where(flat, 1.0, spread)
        total = np.square(moved - moved.mean(axis=(-3, -2), keepdims=True)).sum(axis=axes)
        apart = sum(np.square(np.diff(moved, axis=axis)).sum(axis=axes) for axis in (-3, -2))
    return np.asarray((height * width - 1) * apart / (2 * pairs * total), dtype=np.float64)


def typical(values: Sequence[float | None]) -> float | None:
    """Return the median of the values that are there and finite, None if none is."""
    kept = [value for value in values if value is not None and math.isfinite(value)]
    return median(kept) if kept else None


def smoother(ours: Sequence[float | None], theirs: Sequence[float | None]) -> tuple[int, int, float]:
    """Compare two models on the same images: ``(images where ours is smaller, images that count, p)``.

    Images count where both values are finite and differ. p is the two-sided sign test's, 1 if none counts. Raises
    ValueError for lists of unequal length.
    """
    pairs = [(a, b) for a, b in zip(ours, theirs, strict=True) if a is not None and b is not None]
    counted = [(a, b) for a, b in pairs if math.isfinite(a) and math.isfinite(b) and a != b]
    test = mcnemar([a < b for a, b in counted], [a > b for a, b in counted])  # which is the sign test of the wins
    return test.only_a, len(counted), test.p
