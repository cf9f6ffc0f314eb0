"""The code's constants are those that docs/protocols.md, docs/supervised.md and docs/report.md name, with sources."""

from __future__ import annotations

import re
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
from eval.knn.config import KnnConfig
from eval.probe.config import ProbeConfig
from eval.retrieval.config import RetrievalConfig
from eval.tokencut.config import TokenCutConfig
from tests.helpers.published import check, check_in_code, leaves, value_of

PAGE = Path(__file__).parents[2] / "docs" / "protocols.md"
DEFAULTS: dict[type[BaseModel], dict[str, Any]] = {
    ProbeConfig: {  # the paper's 30 epochs; it names neither rates nor schedule
        "epochs": 30, "learning_rates": [1e-4, 3e-4, 1e-3, 3e-3, 1e-2], "weight_decay": [1e-4], "schedule": "cosine",
        "batchnorm": "plain", "holdout": 0.1,
    },
    KnnConfig: {"temperature": 0.07, "size": 224},  # eval_knn.py
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
    "dinoskip.init.calibrated:calibrated_.centring": 0.5,  # docs/initialisations.md
    "dinoskip.init.calibrated:calibrated_.gain": 1.0,
    "dinoskip.init.calibrated:calibrated_.diagonal": 0.5,
    "dinoskip.init.calibrated:calibrated_.max_scale": 4.0,
    "dinoskip.init.calibrated:calibrated_.c": 3.0,
    "dinoskip.init.calibrated:_MIXING": 0.5,
    "dinoskip.results.estimates:LEAST": 6,  # docs/report.md
    "dinoskip.decisions.cross_fitting:LEAST_TO_CHOOSE": 30,
    "dinoskip.decisions.cross_fitting:SPLITS": 50,
    "dinoskip.results.estimates:SIGNIFICANT": 0.05,
    "dinoskip.pipeline.stages.sweep:FEWEST": 5,
}
SCHEDULES = {"dino_vits16_100ep": (0.001, 0.04, 0.04), "dino_vits16_300ep": (0.002, 0.04, 0.07)}
"""Peak learning rate (lr × batch / 256), teacher temperature in epoch 0 and after the warm-up."""


def presets() -> dict[str, dict[str, Any]]:
    """Return the settings of each preset in the page's YAML, by dotted key; the second one adds to the first."""
    whole: dict[str, Any] = {}
    found = {}
    for block in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), flags=re.DOTALL):
        whole = {**whole, **dict(leaves(YAML(typ="safe").load(block)))}
        found[whole["pretrain.preset"]] = {key: value for key, value in whole.items() if key != "pretrain.preset"}
    return found


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
    check_in_code(place, published)
