"""Depth metrics of an image, of many predictions at once (Eigen et al. 2014; Monocular-Depth-Estimation-Toolbox)."""

from __future__ import annotations

from typing import Literal

import torch

NAMES = ("RMSE", "AbsRel", "log10", "SILog", "delta1", "delta2", "delta3", "RMSE log", "SqRel")
"""In the order of :func:`depth_scores`: RMSE and SqRel in metres, SILog times 100, deltas as shares (0..1)."""
# Eigen et al. 2014 cut NYU's frames to rows 45 to 471 and columns 41 to 601, where depth was measured; Garg et al. 2016
# cut KITTI's, by shares of the sides.
_NYU = (480, 640)
_EIGEN = (45, 471, 41, 601)  # of 480 × 640
_GARG = (0.40810811, 0.99189189, 0.03594771, 0.96405229)


def scored_part(height: int, width: int, which: Literal["eigen", "garg", "all"]) -> tuple[slice, slice]:
    """Return the rows and columns that are scored; ``eigen`` is in proportion for images not of 480 × 640 pixels."""
    if which == "all":
        return slice(0, height), slice(0, width)
    sides = (height, height, width, width)
    if which == "garg":
        top, bottom, left, right = (int(part * side) for part, side in zip(_GARG, sides, strict=True))
    else:
        whole = (_NYU[0], _NYU[0], _NYU[1], _NYU[1])
        top, bottom, left, right = (at * side // of for at, side, of in zip(_EIGEN, sides, whole, strict=True))
    return slice(top, bottom), slice(left, right)


def depth_scores(
    predicted: torch.Tensor,
    truth: torch.Tensor,
    low: float,
    high: float,
    which: Literal["eigen", "garg", "all"] = "eigen",
) -> torch.Tensor:
    """Return float64 (..., 9), see :data:`NAMES`, of predictions (..., H, W) in metres for one image.

    Predictions are clamped to [low, high]; pixels of ``truth`` (H, W) strictly between count. NaN where none does.
    """
    rows, columns = scored_part(truth.shape[0], truth.shape[1], which)
    truth, predicted = truth[rows, columns], predicted[..., rows, columns]
    known = (truth > low) & (truth < high)
    p, t = predicted.clamp(low, high)[..., known], truth[known]
    difference, logarithm = p - t, p.log() - t.log()
    ratio = torch.maximum(p / t, t / p)

    def mean(values: torch.Tensor) -> torch.Tensor:
        return values.mean(-1, dtype=torch.float64)

    squares = mean(logarithm.square())
    variance = (squares - mean(logarithm).square()).clamp(min=0)
    tens = logarithm.abs() / torch.log(torch.tensor(10.0, dtype=p.dtype))
    each = [
        mean(difference.square()).sqrt(),
        mean(difference.abs() / t),
        mean(tens),
        100 * variance.sqrt(),
        *(mean((ratio < 1.25**power).to(p.dtype)) for power in (1, 2, 3)),  # delta1 to delta3, Eigen et al. 2014
        squares.sqrt(),
        mean(difference.square() / t),
    ]
    return torch.stack(each, -1)
