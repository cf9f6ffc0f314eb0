"""Surface normals by linear heads on a data set: fit, choice of learning rates, scores, result rows, predicted maps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import interpolate, normalize

from dinoskip.data.geometry import NormalsDataset
from dinoskip.models import Backbone
from dinoskip.results import EvalResult
from eval.normals.angles import NAMES, normal_scores
from eval.normals.augment import square
from eval.normals.config import NormalsConfig
from eval.normals.fit import fit_heads, score_heads
from eval.surfaces import Measures, SurfaceInputs, baseline_images, evaluate_surfaces

MEASURES = Measures("normals", NAMES, error=NAMES[0], share=NAMES[1])
_BASELINE_SIDE = 120


def evaluate(
    backbone: Backbone,
    train: NormalsDataset,
    val: NormalsDataset,
    blocks: Sequence[int] | str,
    out: Path,
    config: NormalsConfig,
    context: Mapping[str, Any],
    *,
    facets: Sequence[str] = ("out",),
    seed: int = 0,
    multiscale: Sequence[int] | None = None,
    workers: int = 0,
) -> list[EvalResult]:
    """Fit heads on every block (``blocks``: numbers or ``"all"``) and on the ``multiscale`` blocks together.

    Writes ``rows.json``, ``records.npz``, ``heads.safetensors``, ``normals.json`` (all trials) and ``maps.npz`` into
    ``out``. Rows, choices and notes as in :func:`eval.depth.evaluation.evaluate`, of :data:`eval.normals.angles.NAMES`.
    """
    given = SurfaceInputs(
        backbone, train, val, blocks, out, config, context, facets, seed, multiscale, workers,
        resolution="native, centre square",
    )  # fmt: skip
    return evaluate_surfaces(MEASURES, given, fit_heads, score_heads, lambda: _baselines(train, val))


def _baselines(train: NormalsDataset, val: NormalsDataset) -> dict[str, NDArray[np.float64]]:
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
