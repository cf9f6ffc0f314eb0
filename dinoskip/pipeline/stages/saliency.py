"""The stage ``saliency``: the object of every image as a mask, every block, scored."""

from __future__ import annotations

from pydantic import Field

from dinoskip.config import RawConfig, settings_for_key, validate
from dinoskip.pipeline.fields import Names
from dinoskip.pipeline.stage import Command, Stage, StudyNodes, Task
from dinoskip.pipeline.stages import data, features
from dinoskip.pipeline.stages.tokencut import Facet
from eval import saliency
from eval.saliency.config import SaliencyConfig

ROUNDED = {"mode": "rounded", "resample": "lanczos"}


class SaliencySection(SaliencyConfig):
    """Saliency (docs/parts.md): the object of an image as a mask, and the bilateral solver after it."""

    datasets: Names = Field((), description="keys of data, with masks; whatever is neither 0 nor 255 is the object")
    split: str = Field("test", description="whose images are cut; scenes and VOC have val")
    facet: Facet = Field("key", description="features that are compared")


def add_nodes(nodes: StudyNodes) -> None:
    """A node for every network and data set."""
    section = nodes.section(SaliencySection)
    sized = {"facet": section.facet, "transform": ROUNDED}
    hashes = [(what, "segmentation", section.split) for what in ("images", "targets")]
    for model in nodes.models:
        for name in section.datasets:
            source = features.source_of(
                nodes, model, "store", "segmentation", name, section.split, sized, f"-{section.facet}-rounded"
            )
            nodes.add(
                STAGE,
                f"{model.place}/{name}",
                {
                    "saliency": settings_for_key(section, without={"datasets", "split", "facet"}),
                    "context": {**nodes.context(model.variant, model.epoch), "dataset": name},
                    **source.settings,
                },
                inputs=source.inputs,
                data=data.of_dataset(nodes, name, section.split, *hashes),
                runtime=source.runtime,
                outside=source.outside,
                variant=model.variant.name,
            )


def run(task: Task) -> None:
    """Cut and score every image at every block."""
    from dinoskip.pipeline.inputs import open_features, open_split, row_context  # torch

    store = open_features(task, "store")
    saliency.evaluate(
        store,
        open_split(task, "segmentation"),
        task.out,
        validate(SaliencyConfig, RawConfig(dict(task.settings["saliency"]))),
        row_context(task, store),
        device=task.device,
        workers=task.workers,
    )


STAGE = Stage(
    "saliency",
    run,
    add_nodes,
    SaliencySection,
    place="evaluate.saliency",
    use="segmentation",
    measures="saliency",
    resumes=True,
    command=Command(
        "find the object of every image as a mask, with every block", "evaluate.saliency.solver=true", kind="ecssd"
    ),
)
