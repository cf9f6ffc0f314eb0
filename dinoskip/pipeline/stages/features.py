"""The stage ``features``: every block of every image of one split, in one pass; ranks share the images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dinoskip.pipeline.stage import EvaluatedModel, Stage, StudyNodes, Task
from dinoskip.pipeline.stages import data


def run(task: Task) -> None:
    """Export the features."""
    from dinoskip.config import RawConfig, validate
    from dinoskip.distributed import world  # torch, as all of these
    from dinoskip.features import Transform, export
    from dinoskip.pipeline.inputs import open_backbone, open_split

    settings, use = task.settings, task.settings["use"]
    dataset = open_split(task, use)
    with world(task.device) as here:
        export(
            open_backbone(settings, task.inputs.get("weights"), "cpu").to(here.device),
            dataset,
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


STAGE = Stage("features", run, resumes=True, together=True, version=2)


def of_split(
    nodes: StudyNodes,
    model: EvaluatedModel,
    use: str,
    name: str,
    split: str,
    settings: Mapping[str, Any],
    suffix: str = "",
) -> str:
    """The node with the features that a stage reads of a split.

    ``settings`` are ``facet``, ``transform``, and ``norm`` where it is not the usual one. ``suffix`` tells the node's
    name from that of others of the same use.
    """
    evaluate = nodes.study.evaluate
    usual = evaluate.norm[0] if settings["facet"] == "out" else "none"  # projections have no norm after them
    norm = settings.get("norm", usual)
    full = {**settings, **model.spec, "norm": norm, "blocks": evaluate.block_list, "use": use}
    suffix += "" if norm == usual else f"-{norm}"
    return nodes.add(
        STAGE,
        f"{model.place}/{name}-{split}-{use}{suffix}",
        full,
        inputs=model.inputs,
        data=data.of_dataset(nodes, name, split, ("images", use, split)),
        outside=model.outside,
        variant=model.variant.name,
    )
