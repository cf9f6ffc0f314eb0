"""The code's constants are those that docs/protocols.md, docs/supervised.md and docs/report.md name, with sources."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from inspect import signature
from math import log
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from ruamel.yaml import YAML

from dinoskip.init.config import CalibratedInit
from dinoskip.training import PretrainJob
from dinoskip.training.dino import DinoSchedules
from dinoskip.training.patch_contrast_config import PatchContrastConfig
from dinoskip.training.supervised_config import SupervisedJob
from dinoskip_dense.depth.config import DepthConfig
from dinoskip_dense.normals.config import NormalsConfig
from eval.knn.config import KnnConfig
from eval.probe.config import ProbeConfig
from eval.retrieval.config import RetrievalConfig
from eval.tokencut.config import TokenCutConfig

PAGE = Path(__file__).parents[2] / "docs" / "protocols.md"
DEFAULTS: dict[type[BaseModel], dict[str, Any]] = {
    ProbeConfig: {  # the paper's 30 epochs; it names neither rates nor schedule
        "epochs": 30, "learning_rates": [1e-4, 3e-4, 1e-3, 3e-3, 1e-2], "weight_decay": [1e-4], "schedule": "cosine",
        "batchnorm": "plain", "holdout": 0.1,
    },
    KnnConfig: {"temperature": 0.07, "size": 224},  # eval_knn.py
    DepthConfig: {  # DINOv2's depther, lin. 1
        "learning_rates": [1e-4], "weight_decay": 0.01, "iterations": 38_400, "warmup": 1 / 3, "mean_only": 100,
        "clip": 35.0, "bins": 256, "upsample": 4, "crop": [416, 544], "rotate": 2.5, "min_depth": 1e-3,
        "max_depth": 10.0,
    },
    NormalsConfig: {"learning_rates": [5e-4], "epochs": 10, "batch_size": 8, "jitter": 0.8, "resized": 0.5},  # probe3d
    CalibratedInit: {"centring": 0.5, "gain": 1.0, "diagonal": 0.5, "max_scale": 4.0, "c": 3.0},  # docs/initialisations
    PatchContrastConfig: {"temperature": 0.1, "crop_scale": [0.35, 1.0]},  # docs/objectives.md
    TokenCutConfig: {"tau": [0.2], "eps": 1e-5},  # main_tokencut.py
    RetrievalConfig: {"k": 30, "temperature": 0.02, "size": 512},  # Hummingbird (2023)
    SupervisedJob: {  # ConvNeXt, table 5; the paper: as weight selection, 50 epochs of warm-up and no drop path
        "supervise": {"epochs": 300, "batch_size": 4096, "warmup_epochs": 50, "clip_grad": 0.0},
        "supervise.augment": {"rand_magnitude": 9, "rand_std": 0.5, "mixup": 0.8, "cutmix": 1.0, "erase": 0.25},
        "supervise.augment.label_smoothing": 0.1,
        "optimizer": {"lr": 0.00025, "weight_decay": 0.05, "weight_decay_end": 0.05},  # 4e-3 at 4096, per 256
        "model.drop_path": 0.0,
    },
}  # fmt: skip
IN_CODE = {
    "dinoskip.data.crops:RATIO": [3 / 4, 4 / 3],  # RandomResizedCrop's default
    "dinoskip.data.augment:MEAN": [0.485, 0.456, 0.406],  # DataAugmentationDINO
    "dinoskip.data.augment:STD": [0.229, 0.224, 0.225],
    "eval.knn.classify:knn_predictions.temperature": 0.07,  # eval_knn.py
    "dinoskip_objectives.masks:LOG_ASPECT": log(1 / 0.3),  # iBOT's loader.py: pred_aspect_ratio (0.3, 1 / 0.3)
    "dinoskip_objectives.masks:TRIES": 10,
    "dinoskip.init.calibrated:calibrated_.centring": 0.5,  # docs/initialisations.md
    "dinoskip.init.calibrated:calibrated_.gain": 1.0,
    "dinoskip.init.calibrated:calibrated_.diagonal": 0.5,
    "dinoskip.init.calibrated:calibrated_.max_scale": 4.0,
    "dinoskip.init.calibrated:calibrated_.c": 3.0,
    "dinoskip.init.calibrated:_MIXING": 0.5,
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
    "dinoskip_video.video.scores:_TOLERANCE": 0.008,  # DAVIS 2017's bound_th
    "dinoskip_video.video.frames:_AS_CODED": (
        (0.485, 0.456, 0.406),
        (0.228, 0.224, 0.225),
    ),  # eval_video_segmentation.py
    "dinoskip.results.estimates:LEAST": 6,  # docs/report.md
    "dinoskip.decisions.cross_fitting:LEAST_TO_CHOOSE": 30,
    "dinoskip.decisions.cross_fitting:SPLITS": 50,
    "dinoskip.results.estimates:SIGNIFICANT": 0.05,
    "dinoskip.pipeline.stages.sweep:FEWEST": 5,
}
SCHEDULES = {"dino_vits16_100ep": (0.001, 0.04, 0.04), "dino_vits16_300ep": (0.002, 0.04, 0.07)}
"""Peak learning rate (lr × batch / 256), teacher temperature in epoch 0 and after the warm-up."""


def leaves(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key and value of everything in a tree that is no mapping."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def presets() -> dict[str, dict[str, Any]]:
    """Return the settings of each preset in the page's YAML, by dotted key; the second one adds to the first."""
    whole: dict[str, Any] = {}
    found = {}
    for block in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), flags=re.DOTALL):
        whole = {**whole, **dict(leaves(YAML(typ="safe").load(block)))}
        found[whole["pretrain.preset"]] = {key: value for key, value in whole.items() if key != "pretrain.preset"}
    return found


def value_of(owner: Any, key: str) -> Any:
    for name in key.split("."):
        owner = getattr(owner, name)
    return owner


def check(value: Any, published: Any) -> None:
    if isinstance(value, float):
        assert value == pytest.approx(published, rel=1e-9)
    else:
        assert (list(value) if isinstance(published, list) else value) == published


@pytest.mark.parametrize(
    ("preset", "key", "published"), [(name, *leaf) for name, tree in presets().items() for leaf in tree.items()]
)
def test_presets(preset: str, key: str, published: Any) -> None:
    check(value_of(PretrainJob.model_validate({"pretrain": {"preset": preset}}), key), published)


def test_the_page_has_both_presets_whole() -> None:
    assert {name: len(tree) for name, tree in presets().items()} == dict.fromkeys(SCHEDULES, 39)


@pytest.mark.parametrize("preset", SCHEDULES)
def test_schedules(preset: str) -> None:
    per_epoch = 3
    job = PretrainJob.model_validate({"pretrain": {"preset": preset}})
    schedules = DinoSchedules(job.pretrain, job.optimizer, per_epoch)
    rates = [schedules.at(step) for step in range(job.pretrain.epochs * per_epoch)]
    reached = (max(rate.lr for rate in rates), rates[0].teacher_temp, rates[-1].teacher_temp)
    assert reached == pytest.approx(SCHEDULES[preset], rel=1e-9)


@pytest.mark.parametrize(
    ("config", "key", "published"), [(config, *leaf) for config, tree in DEFAULTS.items() for leaf in leaves(tree)]
)
def test_defaults(config: type[BaseModel], key: str, published: Any) -> None:
    check(value_of(config(), key), published)


@pytest.mark.parametrize(("place", "published"), IN_CODE.items())
def test_constants_in_code(place: str, published: Any) -> None:
    module, _, path = place.partition(":")
    name, _, argument = path.partition(".")
    value = getattr(import_module(module), name)
    check(signature(value).parameters[argument].default if argument else value, published)
