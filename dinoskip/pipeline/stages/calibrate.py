"""The stage ``calibrate``: the first weights of variants whose initialisation is measured on images.

Rank 0 computes them, and every stage that begins with them reads its file. ``calibration.json`` says what the
measurement changed, block by block.
"""

from __future__ import annotations

from collections.abc import Iterator

from dinoskip.init.config import CalibratedInit, ModelConfig
from dinoskip.io.files import write_json
from dinoskip.pipeline.sections import StudyBase
from dinoskip.pipeline.stage import Problem, Stage, StudyNodes, Task, unknown_data
from dinoskip.pipeline.stages import data
from dinoskip.pipeline.stages.pretrain import WEIGHTS, images_of
from dinoskip.pipeline.stages.settings import StartSettings
from dinoskip.pipeline.stages.weights import recipe_of
from dinoskip.pipeline.variants import Variant

RESULT = "calibration.json"


def _measured(variants: tuple[Variant, ...]) -> Iterator[tuple[Variant, ModelConfig, CalibratedInit]]:
    for variant in variants:
        if variant.model is not None and isinstance(variant.model.init, CalibratedInit):
            yield variant, variant.model, variant.model.init


def check(study: StudyBase, variants: tuple[Variant, ...]) -> Iterator[Problem]:
    """The images to measure must be a data set of the study."""
    for _, _, init in _measured(variants):
        if init.images is not None:
            yield from unknown_data(study, "model.init.images", init.images)


def add_nodes(nodes: StudyNodes) -> None:
    """A node for every variant that begins with measured weights, on the images named or those it is trained on."""
    recipe = recipe_of(nodes.study)
    for variant, model, init in _measured(nodes.variants):
        name = init.images or (recipe.dataset if recipe else None)
        if name is not None:
            images = data.of_dataset(nodes, name, "train", ("images", "pretraining", "train"))
            nodes.add(STAGE, variant.name, StartSettings(variant.seed, model), data=images, variant=variant.name)


def run(task: Task) -> None:
    """Write the weights, and ``calibration.json`` beside them."""
    from dinoskip.models.export import save_weights  # torch
    from dinoskip.training.calibration import before_and_after, calibrated_model

    settings: StartSettings = task.settings
    images = images_of(task)
    state = calibrated_model(settings.model, settings.seed, images).state_dict()
    save_weights(task.out / WEIGHTS, state, settings.model, {"epoch": 0})
    write_json(task.out / RESULT, before_and_after(settings.model, settings.seed, images))


STAGE = Stage("calibrate", run, add_nodes, check=check)
