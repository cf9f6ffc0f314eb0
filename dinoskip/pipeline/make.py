"""Stages that make things: scenes, a pretrained run, exported weights, the analysis of fresh and trained models."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from dinoskip.config import Config, Source, validate
from dinoskip.data import datasets
from dinoskip.data.scenes import ScenesConfig, compose
from dinoskip.files import write_json
from dinoskip.pipeline.runner import Task


class DatasetBox(Config):
    """A data set's configuration on its own, to be validated by its ``kind``."""

    dataset: datasets.DatasetConfig


def dataset_of(task: Task) -> tuple[Any, Path | None]:
    """The configuration of the data set a task reads, and its folder where an earlier stage composed it."""

    box = validate(DatasetBox, Source({"dataset": dict(task.runtime["config"])}))
    return box.dataset, task.inputs.get("data")


def compose_scenes(task: Task) -> None:
    """``data``: compose the embedded scenes in VOC layout."""
    compose(validate(ScenesConfig, Source(dict(task.settings["scenes"]))), task.out)


def pretrain(task: Task) -> None:
    """``pretrain``: DINO, resumed where it was killed. The output is the run directory."""
    from dinoskip.distributed import on_main
    from dinoskip.pipeline.online import observer_of
    from dinoskip.training import checkpoint
    from dinoskip.training.journal import best_step
    from dinoskip.training.pretraining import PretrainJob
    from dinoskip.training.pretraining import pretrain as run

    settings = {key: task.settings[key] for key in ("seed", "model", "optimizer", "pretrain")}
    settings["pretrain"] = {**settings["pretrain"], **task.runtime["free"]}
    job = validate(PretrainJob, Source(settings))
    config, root = dataset_of(task)
    images = datasets.open_training_images(config, root, split=task.settings["dataset"]["split"])
    observer = observer_of(task)
    final = run(job, images, task.out, device=task.device, workers=task.workers, observer=observer)

    # Which other checkpoints retention has left depends on when the run was killed; the output must not.
    def tidy() -> None:
        kept = {*(checkpoint.of_epoch(task.out, epoch) for epoch in job.pretrain.keep_epochs), final}
        best = {best_step(task.out, observer.score)} if observer else set()
        checkpoint.prune(task.out, {checkpoint.step_of(path) for path in kept} | best)

    on_main(tidy)


def export_weights(task: Task) -> None:
    """``weights``: the teacher's backbone of one epoch's checkpoint as one safetensors file."""
    from dinoskip.training import checkpoint

    source = checkpoint.of_epoch(task.input("run"), task.settings["epoch"])
    shutil.copyfile(source / "teacher.safetensors", task.out / "weights.safetensors")


def analyze(task: Task) -> None:
    """``analyze``: init report of every variant's fresh model (and trained weights), and the signal table."""
    from dinoskip.init.build import ModelConfig
    from dinoskip.pipeline.analysis import analysis
    from dinoskip.pipeline.study import AnalyzeSection

    models = task.settings["models"]
    result = analysis(
        {name: validate(ModelConfig, Source(dict(tree))) for name, tree in models.items()},
        {role: f"weights:{path / 'weights.safetensors'}" for role, path in sorted(task.inputs.items())},
        validate(AnalyzeSection, Source(dict(task.settings["signal"]))),
        task.settings["seed"],
    )
    write_json(task.out / "analysis.json", result)
