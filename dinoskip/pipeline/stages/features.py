"""The stage ``features``: every block of every image of one split, in one pass; ranks share the images."""

from __future__ import annotations

from dataclasses import replace

from dinoskip.pipeline.stage import EvaluatedModel, Stage, StudyNodes, Task
from dinoskip.pipeline.stages import data
from dinoskip.pipeline.stages.inputs import dataset_of, export_options, open_backbone, open_split, readable_by
from dinoskip.pipeline.stages.settings import FEATURES_VERSION, FeatureSettings


def run(task: Task) -> None:
    """Compute the features of a split and write them as a store."""
    from dinoskip.features import export
    from dinoskip.runtime.distributed import world  # torch, as all of these

    wanted = task.settings
    config, root = dataset_of(task)
    dataset = open_split(task, wanted.use, wanted.split)
    with world(task.device) as here:
        weights = task.inputs.get("weights")
        backbone = open_backbone(wanted.backbone, weights, "cpu", wanted.precision).to(here.device)
        options = export_options(wanted, backbone)
        export(
            backbone,
            readable_by(task, dataset, backbone, options["transform"]),
            task.out / "store",
            wanted.blocks,
            workers=task.workers,
            here=here,
            reserve=task.reserve,
            replace=True,  # of images that were changed while a run that was then killed read them
            images={"kind": config.kind, "root": str(root or config.root), "split": wanted.split},
            **options,
        )


STAGE = Stage("features", run, resumes=True, disposable=True, together=True, version=FEATURES_VERSION)


def of_split(nodes: StudyNodes, model: EvaluatedModel, name: str, wanted: FeatureSettings) -> str:
    """The node with these features of a data set: one for all that read the same, whatever their labels."""
    if (there := _of_same_images(nodes, model, name, wanted)) is not None:
        return there
    return nodes.add(
        STAGE,
        f"{model.place}/{name}-{wanted.split}-{wanted.name}",
        replace(wanted, backbone=model.variant.backbone),
        inputs=model.inputs,
        data=data.of_dataset(nodes, name, wanted.split, ("images", wanted.use, wanted.split)),
        outside=model.outside,
        variant=model.variant.name,
    )


def _of_same_images(nodes: StudyNodes, model: EvaluatedModel, name: str, wanted: FeatureSettings) -> str | None:
    """The node that has these features because another label's split has the same images, if there is one."""
    asked = replace(wanted, backbone=model.variant.backbone)
    prefix = f"{STAGE.name}/{model.place}/{name}-{wanted.split}-"
    for id_, node in nodes.nodes.items():
        before = node.settings
        if not id_.startswith(prefix) or not isinstance(before, FeatureSettings) or before.use == wanted.use:
            continue
        tokens, cls = before.reads
        if replace(before, use=asked.use, tokens=tokens, cls=cls) == replace(asked, tokens=tokens, cls=cls) and (
            (tokens, cls) == asked.reads and nodes.same_images(name, wanted.split, before.use, wanted.use)
        ):
            return id_
    return None
