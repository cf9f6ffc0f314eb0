"""The task ``video``: the masks of videos' first frames carried on by the features of every block; J and F."""

from __future__ import annotations

from pydantic import Field

from dinoskip.settings.fields import READ_AT, Facets, Names
from dinoskip.settings.tasks import EvaluationTask, StripPictures, TaskMetric
from dinoskip_video import video
from dinoskip_video.video.config import VideoConfig


class VideoSection(VideoConfig):
    """Label propagation through videos (docs/video.md): resolution, context, window, how patches vote."""

    datasets: Names = Field((), description="keys of data, with videos")
    split: str = Field("val", description="whose videos are followed")
    facet: Facets = Field(("out",), description=READ_AT)


TASK = EvaluationTask(
    name="video",
    order=110,
    measures="video object segmentation",
    help="follow the objects of videos from their first masks, with every block",
    example="evaluate.video.radius=12",
    section=VideoSection,
    label="video",
    data_kind="davis",
    splits=lambda section: {"scored": section.split},
    study_settings=("seed", "multiscale", "blocks"),
    norm_of_facets=True,
    evaluate=lambda given: video.evaluate(given),
    headline=TaskMetric("J&F", order=6),
    baselines=("first mask",),
    look={"short_side": 224},
    pictures=StripPictures("strips", "frames.jpg"),
    part=67,  # frames of a video: DAVIS 2017 has 1,999 of 30 videos
    version=3,
)
