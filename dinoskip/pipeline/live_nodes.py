"""Nodes of stages that send the images of a training and a scored split through the backbone themselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dinoskip.pipeline.stage import Stage, StudyNodes, Use
from dinoskip.pipeline.stages import data


def add_live_nodes(
    nodes: StudyNodes,
    stage: Stage,
    use: Use,
    datasets: Iterable[str],
    splits: tuple[str, str],
    settings: Mapping[str, Any],
) -> None:
    """A node of ``stage`` for every network and data set, with ``settings`` under the stage's name."""
    contents = [(what, use, split) for split in dict.fromkeys(splits) for what in ("images", "targets")]
    for model in nodes.models:
        for name in datasets:
            whole = {
                stage.name: dict(settings),
                "seed": nodes.study.seed,
                "context": {**nodes.context(model.variant, model.epoch), "dataset": name},
                "multiscale": nodes.multiscale(model.variant),
                "blocks": nodes.study.evaluate.block_list,
                **model.spec,
            }
            nodes.add(
                stage,
                f"{model.place}/{name}",
                whole,
                inputs=model.inputs,
                data=data.of_dataset(nodes, name, splits[1], *contents),
                outside=model.outside,
                variant=model.variant.name,
            )
