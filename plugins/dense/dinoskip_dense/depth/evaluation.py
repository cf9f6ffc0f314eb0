"""Depth by linear heads on a data set: fit, choice of learning rates, scores, result rows, predicted maps."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import interpolate

from dinoskip.errors import DataError
from dinoskip.results.rows import EvalResult
from dinoskip.settings.tasks import TaskInputs
from dinoskip_dense.depth.config import DepthConfig
from dinoskip_dense.depth.fit import fit_heads
from dinoskip_dense.depth.scores import NAMES, depth_scores
from dinoskip_dense.geometry import DepthDataset
from dinoskip_dense.surfaces import Measures, baseline_images, evaluate_surfaces

MEASURES = Measures("depth", NAMES, error="RMSE", share="delta1")
_BASELINE_GRID = (120, 160)  # a quarter of NYU's sides, enlarged when scored (ours)
_MILLIMETRES = 65_536  # what NYU's files of 16 bits can hold


def evaluate(given: TaskInputs) -> list[EvalResult]:
    """Fit depth heads on every block and on the ``multiscale`` blocks together.

    Labels are ``train`` and ``val`` (:class:`DepthDataset`). Writes ``rows.json``, ``records.npz``,
    ``heads.safetensors``, ``depth.json`` (all trials) and ``maps.npz``. Rows of every block: each of
    :data:`dinoskip_dense.depth.scores.NAMES`, of the learning rate with the lowest RMSE on held-out training images;
    with several rates also those ``best on validation``; then the baselines. Without held-out images (``holdout: 0``)
    several rates are chosen on validation, as the references do, and the rows say so.
    """
    config: DepthConfig = given.settings
    resolution = f"native, {config.evaluated} crop"
    return evaluate_surfaces(MEASURES, given, fit_heads, _baselines, resolution, cls=config.cls)


def _baselines(train: DepthDataset, val: DepthDataset, config: DepthConfig) -> dict[str, NDArray[np.float64]]:
    """Scores (n, 9) of two rules that look at no image: the median depth everywhere, and the mean depth of each place.

    Of up to 1,000 training images, evenly spread; places are those of a grid of 120 × 160.
    """
    counts, total, seen = np.zeros(_MILLIMETRES, np.int64), np.zeros(_BASELINE_GRID), np.zeros(_BASELINE_GRID)
    for row in baseline_images(len(train)):
        depth = train.depth(row)
        known = (depth > config.min_depth) & (depth < config.max_depth)
        counts += np.bincount(np.rint(1000 * depth[known]).astype(np.int64), minlength=_MILLIMETRES)[:_MILLIMETRES]
        places = [(np.arange(n) + 0.5) * side // n for n, side in zip(_BASELINE_GRID, depth.shape, strict=True)]
        index = np.ix_(*(place.astype(int) for place in places))
        total += np.where(known[index], depth[index], 0.0)
        seen += known[index]
    if not counts.sum():
        between = f"{config.min_depth:g} and {config.max_depth:g} m"
        raise DataError(f"{train.name} {train.split}: no depth between {between}")
    median = float(np.searchsorted(counts.cumsum(), counts.sum() / 2)) / 1000
    mean = torch.from_numpy(np.where(seen > 0, total / np.maximum(seen, 1), median)).float()[None, None]
    scores = np.full((2, len(val), len(NAMES)), np.nan)
    for i in range(len(val)):
        truth = torch.from_numpy(val.depth(i))
        smooth = interpolate(mean, size=truth.shape, mode="bilinear", align_corners=False)[0, 0]
        both = torch.stack([torch.full_like(truth, median), smooth])
        scores[:, i] = depth_scores(both, truth, config.min_depth, config.max_depth, config.evaluated).numpy()
    return dict(zip(("median depth", "mean depth of each place"), scores, strict=True))
