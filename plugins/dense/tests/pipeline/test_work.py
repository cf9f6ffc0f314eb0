"""The work of the tasks that pass images themselves, and that of all tasks of configs/tasks.yaml."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from dinoskip.models import VitConfig
from dinoskip.pipeline.estimate.costs import Cost, costs
from dinoskip.pipeline.estimate.work import StudyImages
from dinoskip.pipeline.study import build_nodes, load_study
from dinoskip.settings.flops import vit_flops

TASKS = Path(__file__).parents[4] / "configs" / "tasks.yaml"


@cache
def of_tasks() -> dict[str, Cost]:
    """The costs of a study that has every task, of its variant with skips, by stage."""
    study, variants = load_study(TASKS)
    made = costs(StudyImages(study), study, variants, build_nodes(study, variants))
    return {cost.stage: cost for cost in made if "calibrated" not in cost.variant}


@pytest.mark.parametrize(
    ("stage", "images"),
    [
        ("video", 4 * 8),
        ("correspondence", 48),
        ("linear", 180 * 10 + 60),
        ("normals", 90 * 4 + 30),
        ("depth", 150 * 8 + 2 * 30),
        ("gallery", 0),
    ],
)
def test_images_that_stages_pass_themselves(stage: str, images: int) -> None:
    assert of_tasks()[stage].images == images


def test_operations_of_a_pass_are_those_of_the_network() -> None:
    network = VitConfig(name="vit_mini_patch8", depth=6, img_size=64)
    assert of_tasks()["video"].flop == 32 * vit_flops(network, 96)
    assert of_tasks()["correspondence"].flop == 48 * vit_flops(network, 128)
    assert of_tasks()["linear"].flop == 1860 * vit_flops(network, 64)
