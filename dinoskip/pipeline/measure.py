"""Stages that measure: feature export, linear probes, TokenCut, k-NN, dense retrieval."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dinoskip.config import RawConfig, validate
from dinoskip.data import sets as datasets
from dinoskip.distributed import world
from dinoskip.features import FeatureStore, Transform, export
from dinoskip.models import Backbone, load_backbone
from dinoskip.pipeline.make import dataset_of
from dinoskip.pipeline.runner import Task
from dinoskip.pipeline.stages import ours
from eval.knn.config import KnnConfig
from eval.probe.config import ProbeConfig
from eval.retrieval.config import RetrievalConfig
from eval.tokencut.config import TokenCutConfig


def open_backbone(settings: Mapping[str, Any], weights: Path | None, device: str) -> Backbone:
    """The backbone of a task: an exported weights file of this study, or the spec that the variant names."""
    from dinoskip.distributed import choose_device

    spec = f"weights:{weights / 'weights.safetensors'}" if weights else settings["backbone"]
    return load_backbone(spec, device=str(choose_device(device)))


def export_features(task: Task) -> None:
    """``features``: every block of every image of one split, in one pass; ranks share the images."""
    settings = task.settings
    config, root = dataset_of(task)
    use, split = settings["use"], settings["dataset"]["split"]
    opened: Any
    if use == "segmentation":
        opened = datasets.open_segmentation(config, split, root)
    elif use == "detection":
        opened = datasets.open_detection(config, split, root)
    else:
        opened = datasets.open_labelled(config, split, root)
    with world(task.device) as here:
        export(
            open_backbone(settings, task.inputs.get("weights"), "cpu").to(here.device),
            opened,
            task.out / "store",
            settings["blocks"],
            facet=settings["facet"],
            norm=settings["norm"],
            transform=validate(Transform, RawConfig(dict(settings["transform"]))),
            tokens=use != "classes",
            cls=use != "detection",
            workers=task.workers,
            here=here,
        )


@dataclass(frozen=True)
class _Store:
    store: FeatureStore
    context: dict[str, Any]


def _open(task: Task, role: str) -> _Store:
    store = FeatureStore.open(task.input(role) / "store")
    context = {**task.settings["context"], "weights": store.weights_hash, "depth": store.depth}
    return _Store(store, context)


def probe(task: Task) -> None:
    """``probe``: all blocks × norms × learning rates in one stacked fit, of stores or of live images."""
    module = ours("eval.probe")
    settings = task.settings
    config, root = dataset_of(task)
    recipe = dict(settings["probe"])
    sets = [datasets.open_segmentation(config, recipe.pop(f"{part}_split"), root) for part in ("train", "val")]
    fitting, norms = validate(ProbeConfig, RawConfig(recipe)), settings["norms"]
    own = {"seed": settings["seed"], "multiscale": settings["multiscale"], "norms": norms}
    weights = task.inputs.get("weights")
    backbone = open_backbone(settings, weights, task.device) if weights or "backbone" in settings else None
    if fitting.live:
        assert backbone is not None
        context = {**settings["context"], "weights": backbone.weights_hash, "depth": backbone.depth}
        own["workers"] = task.workers
        module.evaluate_live(backbone, *sets, settings["blocks"], task.out, fitting, context, **own)
        return
    train, val = _open(task, "train"), _open(task, "val")
    own |= {"backbone": backbone, "device": task.device}
    module.evaluate(train.store, val.store, *sets, task.out, fitting, val.context, **own)


def tokencut(task: Task) -> None:
    """``tokencut``: one box an image, block and method, and CorLoc."""
    module = ours("eval.tokencut")
    opened = _open(task, "store")
    config, root = dataset_of(task)
    boxes = datasets.open_detection(config, task.settings["dataset"]["split"], root)
    settings = validate(TokenCutConfig, RawConfig(task.settings["tokencut"]))
    how = {"multiscale": task.settings["multiscale"], "device": task.device, "workers": task.workers}
    module.evaluate(opened.store, boxes, task.out, settings, opened.context, **how)


def knn(task: Task) -> None:
    """``knn``: weighted k-NN on the CLS token of every block."""
    module = ours("eval.knn")
    train, val = _open(task, "train"), _open(task, "val")
    config, root = dataset_of(task)
    labelled = {split: datasets.open_labelled(config, split, root) for split in ("train", "val")}
    module.evaluate(
        train.store,
        val.store,
        labelled["train"].labels,
        labelled["val"].labels,
        labelled["train"].class_names,
        task.out,
        validate(KnnConfig, RawConfig({"k": task.settings["k"]})),
        val.context,
        device=task.device,
    )


def retrieve(task: Task) -> None:
    """``retrieve``: validation patches labelled by the nearest training patches, every block."""
    module = ours("eval.retrieval")
    train, val = _open(task, "train"), _open(task, "val")
    config, root = dataset_of(task)
    section = task.settings["retrieve"]
    settings = {key: section[key] for key in RetrievalConfig.model_fields}
    module.evaluate(
        train.store,
        val.store,
        datasets.open_segmentation(config, section["train_split"], root),
        datasets.open_segmentation(config, section["val_split"], root),
        task.out,
        validate(RetrievalConfig, RawConfig(settings)),
        val.context,
        seed=task.settings["seed"],
        device=task.device,
    )
