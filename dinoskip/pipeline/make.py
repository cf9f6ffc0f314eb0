"""Stages that make things: scenes, a pretrained run, exported weights, the analysis of fresh and trained models."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from dinoskip.config import Config, Source, validate
from dinoskip.data import datasets
from dinoskip.data.scenes import ScenesConfig, compose
from dinoskip.files import read_json, verify_manifest, write_json
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
    from dinoskip.training.loop import PretrainJob
    from dinoskip.training.loop import pretrain as run

    settings = {key: task.settings[key] for key in ("seed", "model", "optimizer", "pretrain")}
    settings["pretrain"] = {**settings["pretrain"], **task.runtime["free"]}
    job = validate(PretrainJob, Source(settings))
    config, root = dataset_of(task)
    images = datasets.open_images(config, root, split=task.settings["dataset"]["split"])
    run(job, images, task.out, device=task.device, workers=task.workers)


def export_weights(task: Task) -> None:
    """``weights``: the teacher's backbone of one epoch's checkpoint as one safetensors file."""
    import shutil

    from dinoskip.errors import WeightsError

    epoch = task.settings["epoch"]
    for checkpoint in sorted((task.input("run") / "checkpoints").glob("step-*")):
        if read_json(checkpoint / "state.json")["epoch"] == epoch:
            problems = verify_manifest(checkpoint)
            if problems:
                raise WeightsError(problems[0])
            shutil.copyfile(checkpoint / "teacher.safetensors", task.out / "weights.safetensors")
            return
    raise WeightsError(f"{task.input('run')}: holds no checkpoint of epoch {epoch}")


def analyze(task: Task) -> None:
    """``analyze``: init report of every variant's fresh model (and trained weights), and the signal table."""
    from dinoskip.diagnostics.signal import bundled_photos, signal_table
    from dinoskip.init.build import ModelConfig, build_model
    from dinoskip.init.report import report
    from dinoskip.models.export import build_from_weights

    result: dict[str, Any] = {"fresh": {}, "trained": {}}
    for name, tree in task.settings["models"].items():
        model = build_model(validate(ModelConfig, Source(dict(tree))), task.settings["seed"])
        result["fresh"][name] = [asdict(row) for row in report(model)]
    for role, path in sorted(task.inputs.items()):
        model, _ = build_from_weights(path / "weights.safetensors")
        result["trained"][role] = [asdict(row) for row in report(model)]
    signal = task.settings["signal"]
    photos = bundled_photos(signal["photos"], signal["img_size"])
    result["signal"] = [
        asdict(row)
        for row in signal_table(photos, name=signal["model"], depth=signal["depth"], seed=task.settings["seed"])
    ]
    write_json(task.out / "analysis.json", result)
