"""The task ``retrieve``: validation patches labelled by the nearest training patches, every block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import Field

from dinoskip.io.parts import IMAGES
from dinoskip.settings.fields import READ_AT, Facets, Names
from dinoskip.settings.tasks import EvaluationTask, FeatureRequest, TaskMetric
from eval import retrieval
from eval.retrieval.config import RetrievalConfig


class RetrieveSection(RetrievalConfig):
    """Dense retrieval (docs/retrieval.md): resolution, how many training patches are remembered, how they vote."""

    datasets: Names = Field((), description="keys of data, with masks")
    train_split: str = Field("train", description="whose patches are the memory")
    val_split: str = Field("val", description="whose images are reported")
    facet: Facets = Field(("out",), description=READ_AT)
    lists: Names = Field(
        (), description="splits that are parts of train_split: also with each alone, means over those of equal length"
    )


def features(section: RetrieveSection) -> tuple[FeatureRequest, ...]:
    """Square images of both splits."""
    square = {"mode": "square", "size": section.size}
    return (
        FeatureRequest("train", section.train_split, square, in_windows=True, streamed=True),
        FeatureRequest("val", section.val_split, square),
    )


def check(section: RetrieveSection, data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Lists are parts of the training split, so none is the scored one."""
    if section.val_split in section.lists:
        yield "lists", f"{section.val_split!r} is scored: a memory of it would have the images that it is scored on"


def held(section: RetrieveSection, reads: Sequence[tuple[int, int, int, int]]) -> int:
    """One block's remembered patches, as they are and as unit vectors, and their classes, 256 at most, in float32."""
    if not reads:
        return 0
    images, tokens, channels, _ = reads[0]
    return min(section.memory, images * tokens) * 4 * (2 * channels + 256)


TASK = EvaluationTask(
    name="retrieve",
    order=40,
    measures="dense retrieval",
    help="segment by the nearest training patches, with every block",
    example="evaluate.retrieve.k=30",
    section=RetrieveSection,
    label="segmentation",
    splits=lambda section: {
        "train": section.train_split, **{name: name for name in section.lists}, "val": section.val_split,
    },
    features=features,
    study_settings=("seed",),
    sizes=lambda section: {"size": section.size},
    check=check,
    evaluate=lambda given: retrieval.evaluate(given),
    headline=TaskMetric("mIoU", order=0),
    spoken="retrieval",
    baselines=("majority class",),
    hub="image-segmentation",
    part=IMAGES,
    held=held,
    version=5,
    as_published=lambda row: row.deviation is None,
)  # fmt: skip
