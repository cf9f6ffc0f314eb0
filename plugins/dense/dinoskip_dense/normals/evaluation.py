"""Surface normals by linear heads on a data set: fit, choice of learning rates, scores, result rows, predicted maps."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import interpolate, normalize

from dinoskip.results.rows import EvalResult
from dinoskip.settings.tasks import TaskInputs
from dinoskip_dense.geometry import NormalsDataset
from dinoskip_dense.normals.angles import NAMES, normal_scores
from dinoskip_dense.normals.augment import square
from dinoskip_dense.normals.config import NormalsConfig
from dinoskip_dense.normals.fit import fit_heads
from dinoskip_dense.surfaces import Measures, baseline_images, evaluate_surfaces

MEASURES = Measures("normals", NAMES, error=NAMES[0], share=NAMES[1])
_BASELINE_SIDE = 120  # as many as rows of the depth baseline


def evaluate(given: TaskInputs) -> list[EvalResult]:
    """Fit heads of surface normals on every block and on the ``multiscale`` blocks together.

    Labels are ``train`` and ``val`` (:class:`NormalsDataset`). Writes ``rows.json``, ``records.npz``,
    ``heads.safetensors``, ``normals.json`` (all trials) and ``maps.npz``. Rows, choices and notes as in
    :func:`dinoskip_dense.depth.evaluation.evaluate`, of :data:`dinoskip_dense.normals.angles.NAMES`.
    """
    return evaluate_surfaces(MEASURES, given, fit_heads, _baselines, "native, centre square")


def _baselines(train: NormalsDataset, val: NormalsDataset, config: NormalsConfig) -> dict[str, NDArray[np.float64]]:
    """Scores (n, 4) of two rules that look at no image: the mean normal everywhere, and the mean normal of each place.

    Of up to 1,000 training images, evenly spread; places are those of a grid of 120 × 120.
    """
    total = torch.zeros(3, _BASELINE_SIDE, _BASELINE_SIDE, dtype=torch.float64)
    for row in baseline_images(len(train)):
        _, normals, valid = square(train.read(row))
        known = (normals * valid)[None].double()
        total += interpolate(known, size=total.shape[1:], mode="nearest-exact")[0]
    mean = normalize(total.sum((1, 2)), dim=0).float()
    places = normalize(total, dim=0).float()[None]
    scores = np.full((2, len(val), len(NAMES)), np.nan)
    for i in range(len(val)):
        _, truth, valid = square(val.read(i))
        smooth = interpolate(places, size=truth.shape[1:], mode="bilinear", align_corners=False)[0]
        both = torch.stack([mean[:, None, None].expand_as(truth), smooth])
        scores[:, i] = normal_scores(both, truth, valid).numpy()
    return dict(zip(("mean normal", "mean normal of each place"), scores, strict=True))
