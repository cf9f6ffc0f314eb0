"""The task ``objects``: several objects of every image by MaskCut, every block, AP and AR."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import Field

from dinoskip.io.parts import IMAGES
from dinoskip.settings.fields import READ_AT, Facets, Names
from dinoskip.settings.tasks import EvaluationTask, FeatureRequest, TaskMetric
from dinoskip_dense import objects
from dinoskip_dense.objects.config import ObjectsConfig
from eval.tokencut.memory import peak_bytes


class ObjectsSection(ObjectsConfig):
    """Several objects of an image (docs/parts.md): thresholds, how many, at which size."""

    datasets: Names = Field((), description="keys of data, with boxes")
    split: str = Field("trainval", description="whose images are cut")
    facet: Facets = Field(("key",), description=READ_AT)


def check(section: ObjectsSection, data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Masks are scored where the data set has outlines."""
    boxes_alone = [name for name in section.datasets if data[name].kind not in {"coco_json", "coco20k"}]
    if section.masks and boxes_alone:
        yield "masks", f"{boxes_alone[0]} has boxes alone: kinds coco_json and coco20k have outlines"


def features(section: ObjectsSection) -> tuple[FeatureRequest, ...]:
    """Square images of the split, resized to ``size``."""
    square = {"mode": "square", "size": section.size, "resample": "lanczos"}
    return (FeatureRequest("store", section.split, square, in_windows=True, streamed=section.positions == "keep"),)


TASK = EvaluationTask(
    name="objects",
    order=90,
    measures="discovery of several objects",
    help="discover several objects an image in every block by MaskCut",
    example="evaluate.objects.rounds=3",
    section=ObjectsSection,
    label="detection",
    splits=lambda section: {"store": section.split},
    features=features,
    sizes=lambda section: {"size": section.size},
    check=check,
    needs_network=lambda section: section.positions == "insid3",
    evaluate=lambda given: objects.evaluate(given),
    headline=TaskMetric("AP50", order=5),
    baselines=("full image", "centre box"),
    pictures="maps",
    hub="object-detection",
    pairwise=True,
    memory=lambda _, tokens, channels: peak_bytes(tokens, channels),
    part=IMAGES,
    version=3,
    resumes=True,
    not_in_key=("datasets", "split", "facet"),
)
