"""The stage ``features``: every block of every image of one split, in one pass; ranks share the images."""

from __future__ import annotations

from dataclasses import replace

from dinoskip.pipeline.stage import EvaluatedModel, Stage, StudyNodes, Task
from dinoskip.pipeline.stages import data
from dinoskip.pipeline.stages.inputs import export_options, open_backbone, open_split
from dinoskip.pipeline.stages.settings import FEATURES_VERSION, FeatureSettings


def run(task: Task) -> None:
    """Compute the features of a split and write them as a store."""
    from dinoskip.distributed import world  # torch, as all of these
    from dinoskip.features import export

    wanted = task.settings
    dataset = open_split(task, wanted.use, wanted.split)
    with world(task.device) as here:
        weights = task.inputs.get("weights")
        backbone = open_backbone(wanted.backbone, weights, "cpu", wanted.precision).to(here.device)
        export(
            backbone,
            dataset,
            task.out / "store",
            wanted.blocks,
            workers=task.workers,
            here=here,
            reserve=task.reserve,
            **export_options(wanted, backbone),
        )


STAGE = Stage("features", run, resumes=True, disposable=True, together=True, version=FEATURES_VERSION)


def of_split(nodes: StudyNodes, model: EvaluatedModel, name: str, wanted: FeatureSettings) -> str:
    """The node with these features of a data set: one for all that read the same."""
    return nodes.add(
        STAGE,
        f"{model.place}/{name}-{wanted.split}-{wanted.name}",
        replace(wanted, backbone=model.variant.backbone),
        inputs=model.inputs,
        data=data.of_dataset(nodes, name, wanted.split, ("images", wanted.use, wanted.split)),
        outside=model.outside,
        variant=model.variant.name,
    )
