"""Inputs of stages that run: data sets, backbones, feature stores."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dinoskip import features
from dinoskip.data import sets as datasets
from dinoskip.data.sets.labels import LABELS
from dinoskip.pipeline.stage import Task
from dinoskip.pipeline.stages.settings import FeatureSettings
from dinoskip.runtime.arithmetic import Precision
from dinoskip.settings.config import Config, RawConfig, validate

if TYPE_CHECKING:
    from dinoskip.features import FeatureSet
    from dinoskip.models import Backbone


class OneDataset(Config):
    """A data set's configuration on its own, to be validated by its ``kind``."""

    dataset: datasets.DatasetConfig


def dataset_of(task: Task, of: str = "") -> tuple[Any, Path | None]:
    """The configuration of the data set a task reads, and its folder where an earlier stage composed it.

    ``of`` says which, of a task that reads several.
    """
    return task.runtime[f"config {of}".strip()], task.inputs.get(f"data {of}".strip())


def open_split(task: Task, use: str, split: str) -> Any:
    """A split of the task's data set, opened for a use."""
    config, root = dataset_of(task)
    return datasets.open_labels(LABELS[use], config, split, root)


def open_backbone(spec: str | None, weights: Path | None, device: str, precision: Precision) -> Backbone:
    """An exported weights file of this study, or the backbone that the variant names; its passes in a precision."""
    from dinoskip.models import load_backbone
    from dinoskip.runtime.distributed import choose_device  # torch

    weights_spec = f"weights:{weights / 'weights.safetensors'}" if weights else str(spec)
    backbone = load_backbone(weights_spec, device=str(choose_device(device)))
    backbone.precision = precision
    return backbone


def open_features(task: Task, role: str) -> FeatureSet:
    """The features of a role: the store among a task's inputs, or windows where it has none of that role."""
    if role in task.inputs:
        return features.FeatureStore.open(
            task.inputs[role] / "store",
            facet=task.settings.read,
            verify=False if task.parts.helps else None,  # whose work it is has done so
        )
    wanted = task.settings.windows[role]
    backbone = open_backbone(wanted.backbone, task.inputs.get("weights"), task.device, wanted.precision)
    options = export_options(wanted, backbone)
    return features.FeatureWindows(
        backbone,
        readable_by(task, open_split(task, wanted.use, wanted.split), backbone, options["transform"]),
        features.ExportSettings(wanted.blocks, **options),
        limit=task.runtime["window"],
        workers=task.workers,
    )


def readable_by(task: Task, opened: Any, backbone: Backbone, transform: Any) -> Any:
    """A split as a network can read it: where broken images are left out, so are those smaller than its patch."""
    if not dataset_of(task)[0].skip_broken:
        return opened
    from dinoskip.features.small_images import without_small  # torch

    return without_small(opened, transform, backbone.size_multiple)


def export_options(wanted: FeatureSettings, backbone: Backbone) -> dict[str, Any]:
    """Arguments of an export, or of windows: what is read, and how images are sized."""
    facets = backbone.read_at(wanted.facets)
    tokens, cls = wanted.reads
    single = len(facets) == 1
    return {
        "facet": facets[0] if single else list(facets),
        "norm": wanted.norms[0] if single else list(wanted.norms),
        "transform": validate(features.Transform, RawConfig(dict(wanted.transform))),
        "tokens": tokens,
        "cls": cls,
    }
