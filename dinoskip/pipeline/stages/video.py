"""The stage ``video``: the masks of videos' first frames carried on by the features of every block; J and F."""

from __future__ import annotations

from pydantic import Field

from dinoskip.config import RawConfig, settings_for_key, validate
from dinoskip.pipeline.fields import READ_AT, Facets, Names
from dinoskip.pipeline.live_nodes import add_live_nodes, facet_settings, score_split
from dinoskip.pipeline.stage import Command, Stage, StudyNodes, Task
from eval import video
from eval.video.config import VideoConfig


class VideoSection(VideoConfig):
    """Label propagation through videos (docs/video.md): resolution, context, window, how patches vote."""

    datasets: Names = Field((), description="keys of data, with videos")
    split: str = Field("val", description="whose videos are followed")
    facet: Facets = Field(("out",), description=READ_AT)


def add_nodes(nodes: StudyNodes) -> None:
    """A node for every network and data set."""
    section = nodes.section(VideoSection)
    settings = settings_for_key(section, without={"datasets", "facet"})
    further = facet_settings(nodes, section.facet, norm=True)
    add_live_nodes(nodes, STAGE, "video", section.datasets, (section.split,), settings, further)


def run(task: Task) -> None:
    """Follow the objects of every video."""
    config = validate(VideoSection, RawConfig(dict(task.settings["video"])))
    score_split(task, "video", config, video.evaluate)


STAGE = Stage(
    "video",
    run,
    add_nodes,
    VideoSection,
    place="evaluate.video",
    use="video",
    measures="video object segmentation",
    version=2,
    command=Command(
        "follow the objects of videos from their first masks, with every block",
        "evaluate.video.radius=12",
        kind="davis",
    ),
)
