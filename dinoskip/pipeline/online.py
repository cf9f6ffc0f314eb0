"""The section ``online`` of a study: what is measured every ``pretrain.online_every`` epochs while a network trains.

It changes no weight, so it is no part of a stage's key: what has been trained is not trained again to be measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dinoskip.config import RawConfig, validate
from dinoskip.data import sets as datasets
from dinoskip.pipeline.make import DatasetBox
from dinoskip.pipeline.runner import Task
from dinoskip.pipeline.stages import ours
from dinoskip.training.objective import Observer
from eval.online.config import OnlineConfig, OnlineKnnConfig


def build_observer(section: OnlineConfig, data: Mapping[str, tuple[Any, Path | None]]) -> Observer | None:
    """The observer that measures ``section``; None if that is nothing.

    ``data`` gives each part's data set: its configuration, and its folder where a stage composed it. Raises
    :class:`ConfigError` or :class:`DataError` for a data set that does not suit.
    """
    module, measures = ours("eval.online"), []
    for name, part in section.parts.items():
        config, root = data[name]
        classes = isinstance(part, OnlineKnnConfig)
        opened = datasets.open_labelled if classes else datasets.open_segmentation
        measure = module.OnlineKnn if classes else module.OnlineProbe
        train, *val = (opened(config, split, root) for split in part.splits)
        measures.append(measure(train, val[0] if val else None, part))
    observer: Observer | None = module.OnlineEvaluation(measures) if measures else None
    return observer


def observer_of(task: Task) -> Observer | None:
    """The observer of a pretraining stage, from what :mod:`dinoskip.pipeline.nodes` handed it."""
    parts = task.runtime["online"]
    section = validate(OnlineConfig, RawConfig({name: part["section"] for name, part in parts.items()}))
    data = {
        name: (
            validate(DatasetBox, RawConfig({"dataset": dict(part["config"])})).dataset,
            task.inputs.get(f"online {name}"),
        )
        for name, part in parts.items()
    }
    return build_observer(section, data)
