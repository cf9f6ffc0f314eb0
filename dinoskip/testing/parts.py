"""Requirements on the parts of each kind, as functions that yield the problems of a part."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType, MappingProxyType
from typing import Any, get_args

import numpy as np
import torch

from dinoskip.data.config import AugmentConfig, CropConfig
from dinoskip.data.sets import KINDS
from dinoskip.data.sets.kind import DatasetKind
from dinoskip.data.sets.labels import LABELS
from dinoskip.errors import ConfigError
from dinoskip.models.build import from_config
from dinoskip.optim.schedules import Scheduled
from dinoskip.pipeline.stages import ADDED
from dinoskip.plugins import Table
from dinoskip.settings.config import Config, RawConfig, apply_overrides, validate
from dinoskip.settings.tasks import TASKS, FeatureRequest, StudySetting, TaskMetric
from dinoskip.settings.vit_config import VitConfig
from dinoskip.training.objective import WithLosses
from dinoskip.training.objectives import OBJECTIVES
from visualize.gallery.layers import LAYERS
from visualize.gallery.layers.layer import Source
from visualize.report.papers import PAPERS

SMALL = VitConfig(name="vit_tiny_patch16", depth=1, img_size=32)
"""The network that starts and optimizers are tried on: a twelfth of a ViT-Ti/16."""


def problems_of(group: str, name: str) -> list[str]:
    """Return the requirements of its kind that a part does not meet, one line each; [] if it meets all.

    ``group`` is one of :data:`dinoskip.plugins.GROUPS`; :class:`KeyError` for another, and for a name that no part has.
    A stranger's part is run, so whatever it raises is a problem, too.
    """
    try:
        return list(CHECKS[group](name))
    except KeyError:
        raise
    except Exception as error:  # whatever a stranger's part raises
        return [f"{type(error).__name__}: {error}"]


def _task(name: str) -> Iterator[str]:
    record = TASKS[name]
    section: Any = record.section()
    if "datasets" not in record.section.model_fields:
        yield "its section has no field datasets"
    if not record.splits(section):
        yield "splits names none"
    requests = list(record.features(section))
    if any(not isinstance(ask, FeatureRequest) for ask in requests):
        yield "features are no FeatureRequest"
    if missing := [key for key in record.sizes(section) if key not in record.section.model_fields]:
        yield f"sizes: its section has no {missing[0]}"
    if unknown := sorted(set(record.study_settings) - set(get_args(StudySetting))):
        yield f"study_settings: {unknown[0]} is none of {', '.join(get_args(StudySetting))}"
    yield from _label_of(record.label, record.data_kind)
    yield from _settings_of(name, record.section, record.example, record.look)
    for metric in (record.headline, *record.further):
        if not isinstance(metric, TaskMetric) or not metric.range[0] < metric.range[1]:
            yield f"its metric {metric!r} has no range"
    if record.pictures not in {"", "heads"} and name not in LAYERS:
        yield f"it leaves pictures, and there is no gallery layer {name!r}"


def _label_of(label: str, data_kind: str) -> Iterator[str]:
    if label not in LABELS:
        yield f"label {label!r} is none of {', '.join(LABELS)}"
    if data_kind not in KINDS:
        yield f"data_kind {data_kind!r} is none of {', '.join(KINDS)}"
    elif label in LABELS and not LABELS[label].given_by(KINDS[data_kind]):
        yield f"its data_kind {data_kind} has no {LABELS[label].what}: it has no method {LABELS[label].method}"


def _settings_of(name: str, section: type[Config], example: str, look: Mapping[str, Any] | None) -> Iterator[str]:
    """Problems with the settings that help shows and that ``look`` uses."""
    written = apply_overrides(RawConfig({}), [example]).tree.get("evaluate", {}).get(name)
    for what, settings in (("example", written), ("look", look)):
        if what == "example" and not settings:
            yield f"example {example!r} sets nothing below evaluate.{name}"
        try:
            validate(section, RawConfig(dict(settings or {})))
        except ConfigError as error:
            yield f"{what}: {error.message}"


def _label(name: str) -> Iterator[str]:
    label = LABELS[name]
    if not any(label.given_by(kind) for kind in KINDS.values()):
        yield f"no kind of data set has its method {label.method}"


def _data_kind(name: str) -> Iterator[str]:
    kind = KINDS[name]
    if missing := sorted(getattr(kind, "__abstractmethods__", ())):
        yield f"it does not define {', '.join(missing)}"
    if not any(label.given_by(kind) for label in LABELS.values()) and kind.open_images is DatasetKind.open_images:
        yield "it opens neither images nor labels"


def _objective(name: str) -> Iterator[str]:
    kind = OBJECTIVES[name]
    if missing := sorted(getattr(kind, "__abstractmethods__", ())):
        yield f"it does not define {', '.join(missing)}"
        return
    if any(field.is_required() for field in kind.model_fields.values()):  # there are no defaults to try
        return
    settings = kind()
    crops, augment = settings.views()
    if not isinstance(crops, CropConfig) or not isinstance(augment, AugmentConfig):
        yield "views returns no CropConfig and AugmentConfig"
    if not settings.sizes() or not all(isinstance(size, int) for size in settings.sizes().values()):
        yield "sizes names no side of a view"
    if settings.cost(SMALL).flops <= 0:
        yield "cost has no flops"


def _added_losses(name: str) -> Iterator[str]:
    kind: type[WithLosses] = Table("added_losses", {}, WithLosses)[name]
    if missing := sorted(getattr(kind, "__abstractmethods__", ())):
        yield f"it does not define {', '.join(missing)}"
    if name not in OBJECTIVES:
        yield f"there is no objective {name!r} that it could be with added losses"


def _initialisation(name: str) -> Iterator[str]:
    settings: Any = Table("initialisations", {}, Config)[name]()
    model = from_config(SMALL, weight_init="skip")
    parameters = dict(model.named_parameters())
    first, again = (dict(settings.tensors(model, seed=0)) for _ in range(2))
    for key, values in first.items():
        if key not in parameters:
            yield f"{key} is no parameter"
        elif values.shape != parameters[key].shape:
            yield f"{key} is {tuple(values.shape)}, not {tuple(parameters[key].shape)}"
        elif not np.array_equal(values.numpy(), again[key].numpy()):
            yield f"{key} differs from one time to the next with one seed"


def _optimizer(name: str) -> Iterator[str]:
    settings: Any = Table("optimizers", {}, Scheduled)[name]()
    weight, bias = torch.nn.Parameter(torch.ones(4, 3)), torch.nn.Parameter(torch.ones(4))
    groups = [{"params": [weight], "names": ["weight"]}, {"params": [bias], "names": ["bias"], "weight_decay": 0.0}]
    optimizer = settings.build(groups)
    for parameter in (weight, bias):
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    if bool((weight == 1).all()):
        yield "a step leaves a weight as it was"
    for parameter in (weight, bias):
        for key, value in optimizer.state[parameter].items():
            if not isinstance(value, torch.Tensor | int | float):
                yield f"its state {key!r} is no tensor: it could not be saved"


def _layer(name: str) -> Iterator[str]:
    layer = LAYERS[name]
    if layer.source not in get_args(Source):
        yield f"source {layer.source!r} is none of {', '.join(get_args(Source))}"
    if not layer.name or not layer.caption:
        yield "it has no name for its button, or no caption"
    for key, score in layer.metrics.items():
        if unknown := [shown for shown in score.layers if shown not in {*LAYERS, "similarity"}]:
            yield f"metrics: {key} is shown by {unknown[0]}, which is no layer"


def _stage(name: str) -> Iterator[str]:
    stage = ADDED[name]
    if stage.add_nodes is None:
        yield "it adds no nodes"
    if stage.section is None or not stage.place:
        yield "it has no section at a place of a study"
    elif stage.required:
        for key, field in stage.section.model_fields.items():
            if field.is_required():
                yield f"every study has its section, whose {key} has no default: give required=False"


def _command(name: str) -> Iterator[str]:
    add: Any = Table("commands", {}, FunctionType)[name]
    commands = argparse.ArgumentParser().add_subparsers()
    add(commands)
    if name not in commands.choices:
        yield f"it adds no command {name!r}"


def _paper(name: str) -> Iterator[str]:
    paper = PAPERS[name]
    if not paper.tables and not paper.items:
        yield "it has neither tables nor items"
    if listed := [one.table for one in paper.items if one.table and one.table not in paper.tables]:
        yield f"its items name a table {listed[0]!r} that it has not"
    if silent := [one.name for one in paper.items if not one.made_by and not one.why]:
        yield f"{silent[0]} is neither made by a configuration nor says why not"
    for other, theirs in PAPERS.items():
        if other != name and (both := sorted(set(paper.tables) & set(theirs.tables))):
            yield f"the paper {other!r} has a table {both[0]!r}, too"


CHECKS: Mapping[str, Callable[[str], Iterator[str]]] = MappingProxyType(
    {
        "tasks": _task,
        "labels": _label,
        "data_kinds": _data_kind,
        "objectives": _objective,
        "added_losses": _added_losses,
        "initialisations": _initialisation,
        "optimizers": _optimizer,
        "layers": _layer,
        "stages": _stage,
        "commands": _command,
        "papers": _paper,
    }
)
"""A check for each kind of part, of the part's name: what it yields is wrong."""
