"""The task ``detection``: Mask R-CNN on frozen features, AP of boxes and masks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import Field

import dinoskip_detection
from dinoskip.settings.fields import Names
from dinoskip.settings.tasks import EvaluationTask, TaskMetric, TaskOption
from dinoskip_detection.config import DetectionConfig


class DetectionSection(DetectionConfig):
    """Mask R-CNN on the map of a block (docs/heads.md): what is trained, how long, at which size."""

    datasets: Names = Field((), description="keys of data, with boxes; masks are scored of kind coco")
    train_split: str = Field("train", description="whose images the detector is trained on")
    val_split: str = Field("val", description="whose images are reported")


def check(section: DetectionSection, data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """A JSON that is the same for every split has no other images to score."""
    for name in section.datasets:
        if data[name].kind in {"coco_json", "coco20k"}:
            yield "datasets", f"{name} is of kind {data[name].kind}, one list of images: kind coco has two splits"


TASK = EvaluationTask(
    name="detection",
    order=130,
    measures="detection and instance segmentation",
    help="train Mask R-CNN on a frozen or fine-tuned network",
    example="evaluate.detection.epochs=3",
    section=DetectionSection,
    label="detection",
    splits=lambda section: {"train": section.train_split, "val": section.val_split},
    study_settings=("seed", "blocks"),
    check=check,
    evaluate=lambda given: dinoskip_detection.evaluate(given),
    headline=TaskMetric("box AP", order=5),
    baselines=("full image", "centre box"),
    data_kind="coco",
    hub="object-detection",
    version=2,
    options=(
        TaskOption(
            "--fine-tune", None, "evaluate.detection.fine_tune=true",
            "train the network with the detector, in place of the detector alone",
        ),
    ),
)  # fmt: skip
