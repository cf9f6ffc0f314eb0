"""Stages that go through the features of one split part by part: their nodes, and how they run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from dinoskip.config import Config
from dinoskip.pipeline.stage import Stage, StudyNodes, Task, Use
from dinoskip.pipeline.stages import data, features


def add_part_nodes(
    nodes: StudyNodes,
    stage: Stage,
    use: Use,
    datasets: Iterable[str],
    split: str,
    settings: Mapping[str, Any],
    facet: Sequence[str],
    sized: Mapping[str, Any],
    suffix: str,
    reads: tuple[str, ...],
) -> None:
    """A node of ``stage`` for every network, data set and facet, with ``settings`` under the stage's name.

    ``sized`` and ``suffix`` are of the features (:func:`dinoskip.pipeline.stages.features.source_of`), ``reads`` is
    what the stage itself reads of the data set: ``images``, ``targets``.
    """
    hashes = [(what, use, split) for what in reads]
    facets = features.Facets(facet)
    whole = {"facet": facets.exported, **sized}
    for model in nodes.models:
        for name in datasets:
            context = {**nodes.context(model.variant, model.epoch), "dataset": name}
            for read, of_facet, more in facets.readers():
                source = features.source_of(nodes, model, "store", use, name, split, whole, suffix, read=read)
                nodes.add(
                    stage,
                    f"{model.place}/{name}{of_facet}",
                    {stage.name: dict(settings), "context": context, **source.settings, **more},
                    inputs=source.inputs,
                    data=data.of_dataset(nodes, name, split, *hashes, *source.contents),
                    runtime=source.runtime,
                    outside=source.outside,
                    variant=model.variant.name,
                )


def evaluate_parts(task: Task, use: Use, config: Config, evaluate: Callable[..., object]) -> None:
    """Call ``evaluate`` with the features and the data set that they are of."""
    from dinoskip.pipeline.inputs import open_features, open_split, row_context  # torch

    store = open_features(task, "store")
    evaluate(
        store, open_split(task, use), task.out, config, row_context(task, store),
        device=task.device, workers=task.workers,
    )  # fmt: skip
