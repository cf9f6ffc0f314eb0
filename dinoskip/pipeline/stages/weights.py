"""The stage ``weights``: the backbone of one epoch's checkpoint (the teacher's, if there is one) as one file."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dinoskip.errors import DinoskipError
from dinoskip.pipeline.graph import NodeSettings
from dinoskip.pipeline.sections import StudyBase
from dinoskip.pipeline.stage import EvaluatedModel, Problem, Stage, StudyNodes, Task
from dinoskip.pipeline.stages.pretrain import WEIGHTS, PretrainSection, selected_from, start_file, start_of
from dinoskip.pipeline.stages.settings import StartSettings
from dinoskip.pipeline.stages.supervise import SuperviseSection
from dinoskip.pipeline.variants import Variant
from dinoskip.settings.specs import exported_weights


@dataclass(frozen=True)
class CheckpointSettings(NodeSettings):
    """The epoch whose checkpoint the weights are taken from."""

    epoch: int


@dataclass(frozen=True)
class UntrainedSettings(StartSettings):
    """The network before training that a seed and a model give."""

    epoch: int = 0


def recipe_of(study: StudyBase) -> PretrainSection | SuperviseSection | None:
    """Return the training recipe of variants without a ``backbone``; None if the study trains none."""
    return study.find(PretrainSection) or study.find(SuperviseSection)


def evaluated_epochs(study: StudyBase) -> tuple[int, ...]:
    """Epochs whose weights are evaluated: those that the study names, else the last."""
    recipe = recipe_of(study)
    return study.evaluate.epochs or (() if recipe is None else (recipe.epochs,))


def check(study: StudyBase, variants: tuple[Variant, ...]) -> Iterator[Problem]:
    """There must be a recipe where something is to be trained, and it must keep what is evaluated."""
    recipe = recipe_of(study)
    if recipe is None:
        if any(variant.backbone is None for variant in variants):
            yield "pretrain", "this key is required (or supervise, or every variant names a backbone)"
        return
    place = "pretrain" if isinstance(recipe, PretrainSection) else "supervise"
    for epoch in study.evaluate.epochs:
        if epoch not in {0, *recipe.keep_epochs, recipe.epochs}:
            yield "evaluate.epochs", f"epoch {epoch} is not kept: add it to {place}.keep_epochs"


def add_nodes(nodes: StudyNodes) -> None:
    """The networks to evaluate: every epoch of every trained variant, and existing backbones.

    Epoch 0 is the network before training, and needs none.
    """
    trained_by = "pretrain" if nodes.study.find(PretrainSection) else "supervise"
    for variant in nodes.variants:
        if variant.backbone is not None:
            nodes.models.append(EvaluatedModel(variant, 0))
            continue
        assert variant.model is not None
        for epoch in evaluated_epochs(nodes.study):
            node = nodes.add(
                STAGE,
                f"{variant.name}/ep{epoch}",
                CheckpointSettings(epoch) if epoch else UntrainedSettings(variant.seed, variant.model),
                inputs={"run": f"{trained_by}/{variant.name}"} if epoch else start_of(nodes, variant),
                outside={} if epoch else selected_from(variant),
                variant=variant.name,
            )
            nodes.models.append(EvaluatedModel(variant, epoch, node))


def run(task: Task) -> None:
    """Copy the exported weights of the checkpoint, or those of the start, or build the network before training."""
    from dinoskip.init.build import build_model  # torch
    from dinoskip.models.export import save_weights

    settings, out, start = task.settings, task.out / WEIGHTS, start_file(task)
    if isinstance(settings, CheckpointSettings):
        shutil.copyfile(exported_weights(_checkpoint(task.inputs["run"], settings.epoch)), out)
    elif start is not None:
        shutil.copyfile(start, out)
    else:
        save_weights(out, build_model(settings.model, settings.seed).state_dict(), settings.model, {"epoch": 0})


def _checkpoint(run: Path, epoch: int) -> Path:
    from dinoskip.training.checkpoint import of_epoch  # torch

    return of_epoch(run, epoch)


def checkpoint_is_there(settings: CheckpointSettings | UntrainedSettings, run: Path) -> bool:
    """Whether a training that goes on in the folder ``run`` has published the checkpoint, whole."""
    if not isinstance(settings, CheckpointSettings):
        return False
    try:
        _checkpoint(run, settings.epoch)
    except (DinoskipError, OSError):
        return False
    return True


STAGE = Stage("weights", run, add_nodes, check=check, of_unfinished=checkpoint_is_there)
