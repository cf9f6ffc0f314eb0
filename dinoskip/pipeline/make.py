"""Stages that make things: scenes, a trained run, exported weights, the analysis of fresh and trained models."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dinoskip.config import Config, RawConfig, validate
from dinoskip.data import sets as datasets
from dinoskip.data.sets.scenes import ScenesConfig, compose
from dinoskip.files import write_json
from dinoskip.pipeline.runner import Task
from dinoskip.results import EvalResult, write_rows

if TYPE_CHECKING:
    from dinoskip.data.shards import Source as Images
    from dinoskip.training.pretraining import PretrainJob


class DatasetBox(Config):
    """A data set's configuration on its own, to be validated by its ``kind``."""

    dataset: datasets.DatasetConfig


def dataset_of(task: Task) -> tuple[Any, Path | None]:
    """The configuration of the data set a task reads, and its folder where an earlier stage composed it."""

    box = validate(DatasetBox, RawConfig({"dataset": dict(task.runtime["config"])}))
    return box.dataset, task.inputs.get("data")


def compose_scenes(task: Task) -> None:
    """``data``: compose the embedded scenes in VOC layout."""
    compose(validate(ScenesConfig, RawConfig(dict(task.settings["scenes"]))), task.out)


def pretrain(task: Task) -> None:
    """``pretrain``: DINO, resumed where it was killed. The output is the run directory."""
    from dinoskip.distributed import on_main
    from dinoskip.pipeline.online import observer_of
    from dinoskip.pipeline.sweep import chosen_rate
    from dinoskip.training.pretraining import pretrain as run

    job, observer = pretrain_job(task, chosen_rate(task)), observer_of(task)
    final = run(job, images_of(task), task.out, device=task.device, workers=task.workers, observer=observer)
    on_main(lambda: _tidy(task.out, job.pretrain.keep_epochs, final, observer.score if observer else None))


def images_of(task: Task) -> Images:
    """The training images of a task."""
    config, root = dataset_of(task)
    return datasets.open_training_images(config, root, split=task.settings["dataset"]["split"])


def pretrain_job(task: Task, lr: float | None) -> PretrainJob:
    """The job of a task, with a learning rate in place of its optimizer's, if one is given."""
    from dinoskip.training.pretraining import PretrainJob

    source = _job(task, "pretrain", "pretrain")
    if lr is not None:
        source.tree["optimizer"] = {**source.tree["optimizer"], "lr": lr}
    return validate(PretrainJob, source)


def _job(task: Task, setting: str, section: str) -> RawConfig:
    settings = {key: task.settings[key] for key in ("seed", "model", "optimizer")}
    return RawConfig({**settings, section: {**task.settings[setting], **task.runtime["free"]}})


def _tidy(run_dir: Path, epochs: Sequence[int], final: Path, score: str | None) -> None:
    """Keep the checkpoints of ``epochs``, the final and the best one.

    Which others retention has left depends on when the run was killed; the output must not.
    """
    from dinoskip.training import checkpoint
    from dinoskip.training.journal import best_step

    kept = {*(checkpoint.of_epoch(run_dir, epoch) for epoch in epochs), final}
    best = {best_step(run_dir, score)} if score else set()
    checkpoint.prune(run_dir, {checkpoint.step_of(path) for path in kept} | best)


def supervise(task: Task) -> None:
    """``supervise``: a classifier, resumed where it was killed. The run directory, with ``rows.json`` (accuracy)."""
    from dinoskip.distributed import on_main
    from dinoskip.training.supervised import Accuracy, SupervisedJob
    from dinoskip.training.supervised import supervise as run

    job = validate(SupervisedJob, _job(task, "supervised", "supervise"))
    config, root = dataset_of(task)
    train, val = (datasets.open_labelled(config, split, root) for split in ("train", "val"))
    final = run(job, train, val, task.out, device=task.device, workers=task.workers)

    def finish() -> None:
        _tidy(task.out, job.supervise.keep_epochs, final, Accuracy.score)
        known = {
            "n": len(val), "classes": len(val.class_names), "split": "val", "protocol": "classifier of the run",
            "resolution": f"{job.supervise.augment.size} center_crop", **task.settings["context"],
        }  # fmt: skip
        write_rows(task.out / "rows.json", _accuracy_rows(task.out, final, known))

    on_main(finish)


def _accuracy_rows(run_dir: Path, final: Path, known: Mapping[str, Any]) -> list[EvalResult]:
    """Top-1 and top-5 of the final checkpoint, as its row of metrics.jsonl has them."""
    from dinoskip.console import read_metrics
    from dinoskip.models.export import exported_weights, hash_weights, load_weights
    from dinoskip.models.vit import DEPTH
    from dinoskip.training.checkpoint import step_of

    measured = next(row for row in read_metrics(run_dir / "metrics.jsonl") if row["step"] == step_of(final))
    state, model, _ = load_weights(exported_weights(final))
    depth = model.depth or DEPTH
    about = {"task": "classify", "block": str(depth), "depth": depth, "weights": hash_weights(state), **known}
    return [EvalResult(metric=metric, value=measured[metric], **about) for metric in ("top1", "top5")]


def export_weights(task: Task) -> None:
    """``weights``: the backbone of one epoch's checkpoint (the teacher's, if there is one) as one safetensors file."""
    from dinoskip.init.build import ModelConfig, build_model
    from dinoskip.models.export import exported_weights, save_weights
    from dinoskip.training import checkpoint

    out, epoch = task.out / "weights.safetensors", task.settings["epoch"]
    if epoch:
        shutil.copyfile(exported_weights(checkpoint.of_epoch(task.input("run"), epoch)), out)
        return
    config = validate(ModelConfig, RawConfig(dict(task.settings["model"])))
    save_weights(out, build_model(config, task.settings["seed"]).state_dict(), config, {"epoch": 0})


def analyze(task: Task) -> None:
    """``analyze``: init report of every variant's fresh model (and trained weights), and the signal table."""
    from dinoskip.init.build import ModelConfig
    from dinoskip.pipeline.analysis import analysis
    from dinoskip.pipeline.study import AnalyzeSection

    models = task.settings["models"]
    result = analysis(
        {name: validate(ModelConfig, RawConfig(dict(tree))) for name, tree in models.items()},
        {role: f"weights:{path / 'weights.safetensors'}" for role, path in sorted(task.inputs.items())},
        validate(AnalyzeSection, RawConfig(dict(task.settings["signal"]))),
        task.settings["seed"],
    )
    write_json(task.out / "analysis.json", result)
