"""The plug-in's constants are the published ones."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from dinoskip_dense.depth.config import DepthConfig
from dinoskip_dense.normals.config import NormalsConfig
from tests.helpers.published import check, check_in_code, leaves, value_of

DEFAULTS: dict[type[BaseModel], dict[str, Any]] = {
    DepthConfig: {  # DINOv2's depther, lin. 1
        "learning_rates": [1e-4], "weight_decay": 0.01, "iterations": 38_400, "warmup": 1 / 3, "mean_only": 100,
        "clip": 35.0, "bins": 256, "upsample": 4, "crop": [416, 544], "rotate": 2.5, "min_depth": 1e-3,
        "max_depth": 10.0,
    },
    NormalsConfig: {"learning_rates": [5e-4], "epochs": 10, "batch_size": 8, "jitter": 0.8, "resized": 0.5},  # probe3d
}  # fmt: skip
IN_CODE = {
    "dinoskip_dense.saliency.solver:SIGMA_PLACE": 16,  # TokenCut's bilateral_solver.py
    "dinoskip_dense.saliency.solver:SIGMA_LUMA": 16,
    "dinoskip_dense.saliency.solver:SIGMA_CHROMA": 8,
    "dinoskip_dense.saliency.solver:SMOOTHNESS": 256.0,
    "dinoskip_dense.saliency.solver:CONFIDENCE": 0.999,
    "dinoskip_dense.saliency.solver:LEAST_DIAGONAL": 1e-5,
    "dinoskip_dense.saliency.solver:BALANCING": 10,
    "dinoskip_dense.saliency.solver:ITERATIONS": 25,
    "dinoskip_dense.saliency.solver:TOLERANCE": 1e-5,
    "dinoskip_dense.objects.masks:OVERLAP": 0.5,  # CutLER's maskcut.py: IoU with the mask before
    "dinoskip_dense.objects.masks:LEAST_AREA": 0.01,
    "dinoskip_dense.objects.masks:CORNERS": 3,
    "dinoskip_dense.objects.evaluation:_KEPT": 0.5,  # IoU with the mask after the CRF or filling
    "dinoskip_dense.normals.augment:_STRENGTH": 0.2,  # probe3d's ColorJitter
    "dinoskip_dense.normals.augment:_SMALLEST": 0.5,
    "dinoskip_dense.depth.augment:_BORDER": (
        45 / 480,
        472 / 480,
        43 / 640,
        608 / 640,
    ),  # DINOv2's depther: NYUCrop, ColorAug
    "dinoskip_dense.depth.augment:_GAMMA": (0.9, 1.1),
    "dinoskip_dense.depth.augment:_BRIGHTNESS": (0.75, 1.25),
    "dinoskip_dense.depth.augment:_CHANNELS": (0.9, 1.1),
    "dinoskip_dense.depth.fit:_INIT_DEVIATION": 0.01,
}


@pytest.mark.parametrize(
    ("config", "key", "published"), [(config, *leaf) for config, tree in DEFAULTS.items() for leaf in leaves(tree)]
)
def test_defaults(config: type[BaseModel], key: str, published: Any) -> None:
    check(value_of(config(), key), published)


@pytest.mark.parametrize(("place", "published"), IN_CODE.items())
def test_constants_in_code(place: str, published: Any) -> None:
    check_in_code(place, published)
