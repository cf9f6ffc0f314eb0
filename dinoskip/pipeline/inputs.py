"""What stages read when they run: data sets, backbones, feature stores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dinoskip.config import Config, RawConfig, validate
from dinoskip.data import sets as datasets
from dinoskip.distributed import choose_device
from dinoskip.features import FeatureSet, FeatureStore, FeatureWindows, Transform
from dinoskip.models import Backbone, load_backbone
from dinoskip.pipeline.stage import Task, quarters

OPENERS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "segmentation": datasets.open_segmentation,
        "detection": datasets.open_detection,
        "classes": datasets.open_labelled,
        "depth": datasets.open_depth,
        "normals": datasets.open_normals,
        "video": datasets.open_sequences,
        "correspondence": datasets.open_keypoints,
    }
)
"""What opens a split, by the use made of it."""


class OneDataset(Config):
    """A data set's configuration on its own, to be validated by its ``kind``."""

    dataset: datasets.DatasetConfig


def dataset_of(task: Task, of: str = "") -> tuple[Any, Path | None]:
    """The configuration of the data set a task reads, and its folder where an earlier stage composed it.

    ``of`` says which, of a task that reads several.
    """
    box = validate(OneDataset, RawConfig({"dataset": dict(task.runtime[f"config {of}".strip()])}))
    return box.dataset, task.inputs.get(f"data {of}".strip())


def open_split(task: Task, use: str, split: str | None = None) -> Any:
    """A split of the task's data set, by default the one that its settings name, opened for a use."""
    config, root = dataset_of(task)
    return OPENERS[use](config, split or task.settings["dataset"]["split"], root)


def open_backbone(settings: Mapping[str, Any], weights: Path | None, device: str) -> Backbone:
    """An exported weights file of this study, or the backbone that the variant names."""
    spec = f"weights:{weights / 'weights.safetensors'}" if weights else settings["backbone"]
    return load_backbone(spec, device=str(choose_device(device)))


def open_store(task: Task, role: str) -> FeatureStore:
    """The feature store among a task's inputs."""
    return FeatureStore.open(task.input(role) / "store", facet=task.settings.get("read"))


def open_features(task: Task, role: str) -> FeatureSet:
    """The features of a role: the store among a task's inputs, or windows where it has none of that role."""
    if role in task.inputs:
        return open_store(task, role)
    settings = task.settings[f"features {role}"]
    use, split = settings["use"], settings["split"]
    return FeatureWindows(
        open_backbone(settings, task.inputs.get("weights"), task.device),
        open_split(task, use, split),
        settings["blocks"],
        limit=task.runtime["window"],
        workers=task.workers,
        **export_options(settings),
    )


def export_options(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of an export, or of windows, by the settings of features: what is read, and how images are sized."""
    use = settings["use"]
    return {
        "facet": settings["facet"],
        "norm": settings["norm"],
        "transform": validate(Transform, RawConfig(dict(settings["transform"]))),
        "tokens": use != "classes",
        "cls": use != "detection",
    }


def multiscale_blocks(task: Task, depth: int) -> list[int] | None:
    """The blocks that a task evaluates together, of a network of this depth."""
    blocks = task.settings["multiscale"]
    return quarters(depth) if blocks == "quarters" else blocks


def row_context(task: Task, network: FeatureSet | Backbone) -> dict[str, Any]:
    """Fields of the task's result rows: those of its settings, and which weights the features are of."""
    return {**task.settings["context"], "weights": network.weights_hash, "depth": network.depth}
