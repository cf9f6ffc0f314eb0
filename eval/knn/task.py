"""The task ``knn``: weighted k-NN classification on the class token of every block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import Field

from dinoskip.settings.fields import READ_AT, Facets, Names
from dinoskip.settings.tasks import BlockPictures, EvaluationTask, FeatureRequest, TaskMetric
from eval import knn
from eval.knn.config import QUERIES, KnnConfig
from eval.knn.memory import held_bytes


class KnnSection(KnnConfig):
    """k-NN classification of whole images (docs/retrieval.md)."""

    datasets: Names = Field((), description="keys of data, with classes")
    facet: Facets = Field(("out",), description=READ_AT)


def features(section: KnnSection) -> tuple[FeatureRequest, ...]:
    """Centre crops of both splits.

    Their version tells them from those of version 0.1, whose crop was a pixel beside torchvision's at some sizes.
    """
    crop, version = {"mode": "center_crop", "size": section.size}, {"crop": "torchvision"}
    return (
        FeatureRequest("train", "train", crop, in_windows=section.backend != "ivf", version=version),
        FeatureRequest("val", "val", crop, version=version),
    )


def asks_of_labels(section: KnnSection, labels: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield a complaint about ``k`` if it asks for more neighbours than there are training images."""
    count = len(labels["train"])
    if max(section.k) > count:
        yield "k", f"{max(section.k)} neighbours are asked of {count} training images", f"choose 1 to {count}"


TASK = EvaluationTask(
    name="knn",
    order=30,
    measures="k-NN classification",
    help="classify by k-NN on the CLS token of every block",
    example="evaluate.knn.k=[20]",
    section=KnnSection,
    label="classes",
    data_kind="folder",
    splits=lambda _: {"train": "train", "val": "val"},
    features=features,
    asks_of_labels=asks_of_labels,
    sizes=lambda section: {"size": section.size},
    evaluate=lambda given: knn.evaluate(given),
    headline=TaskMetric("accuracy_k*", "k-NN (k = *)", order=2),
    baselines=("majority class", "chance"),
    block_pictures=BlockPictures(
        "neighbours",
        "k-NN: six images and their five nearest training images; green: the same class, vermilion: another.",
        "images, each with its nearest training images, framed by whether they are of its class",
    ),
    look={"size": 224},
    hub="image-classification",
    part=QUERIES,
    parts_of_windows=False,  # each worker would send all training images through the network
    held=lambda _, reads: held_bytes(reads),
    version=5,
    not_in_key=("datasets", "size", "facet"),
)
