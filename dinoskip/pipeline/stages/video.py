"""The stage ``video``: the masks of videos' first frames carried on by the features of every block; J and F."""

from __future__ import annotations

from pydantic import Field

from dinoskip.config import RawConfig, settings_for_key, validate
from dinoskip.pipeline.fields import Names
from dinoskip.pipeline.stage import Command, Stage, StudyNodes, Task
from dinoskip.pipeline.stages import data
from eval import video
from eval.video.config import VideoConfig


class VideoSection(VideoConfig):
    """Label propagation through videos (docs/video.md): resolution, context, window, how patches vote."""

    datasets: Names = Field((), description="keys of data, with videos")
    split: str = Field("val", description="whose videos are followed")


def add_nodes(nodes: StudyNodes) -> None:
    """A node for every network and data set."""
    section, evaluate = nodes.section(VideoSection), nodes.study.evaluate
    hashes = [(what, "video", section.split) for what in ("images", "targets")]
    for model in nodes.models:
        for name in section.datasets:
            settings = {
                "video": settings_for_key(section, without={"datasets"}),
                "seed": nodes.study.seed,
                "context": {**nodes.context(model.variant, model.epoch), "dataset": name},
                "multiscale": nodes.multiscale(model.variant),
                "blocks": evaluate.block_list,
                "norm": evaluate.norm[0],
            }
            nodes.add(
                STAGE,
                f"{model.place}/{name}",
                {**settings, **model.spec},
                inputs=model.inputs,
                data=data.of_dataset(nodes, name, section.split, *hashes),
                outside=model.outside,
                variant=model.variant.name,
            )


def run(task: Task) -> None:
    """Follow the objects of every video."""
    from dinoskip.pipeline.inputs import multiscale_blocks, open_backbone, open_split, row_context  # torch

    settings = task.settings
    backbone = open_backbone(settings, task.inputs.get("weights"), task.device)
    video.evaluate(
        backbone,
        open_split(task, "video"),
        settings["blocks"],
        task.out,
        validate(VideoSection, RawConfig(dict(settings["video"]))),
        row_context(task, backbone),
        norm=settings["norm"],
        multiscale=multiscale_blocks(task, backbone.depth),
        seed=settings["seed"],
        workers=task.workers,
    )


STAGE = Stage(
    "video",
    run,
    add_nodes,
    VideoSection,
    place="evaluate.video",
    use="video",
    measures="video object segmentation",
    command=Command(
        "follow the objects of videos from their first masks, with every block",
        "evaluate.video.radius=12",
        kind="davis",
    ),
)
