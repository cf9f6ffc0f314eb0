"""The stage ``knn``: weighted k-NN classification on the CLS token of every block."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pydantic import Field

from dinoskip.config import RawConfig, settings_for_key, validate
from dinoskip.pipeline.fields import READ_AT, Facets, Names
from dinoskip.pipeline.stage import Command, Problem, Stage, StudyNodes, Task, not_multiples
from dinoskip.pipeline.stages import data, features
from eval import knn
from eval.knn.config import KnnConfig

if TYPE_CHECKING:
    from dinoskip.pipeline.sections import StudyBase
    from dinoskip.pipeline.variants import Variant

SPLITS = ("train", "val")


class KnnSection(KnnConfig):
    """k-NN classification of whole images (docs/retrieval.md)."""

    datasets: Names = Field((), description="keys of data, with classes")
    facet: Facets = Field(("out",), description=READ_AT)


def check(study: StudyBase, variants: tuple[Variant, ...]) -> Iterator[Problem]:
    """Crops must be whole patches."""
    section = study.section(KnnSection)
    yield from not_multiples({"evaluate.knn.size": section.size}, variants, unless=not section.datasets)


def add_nodes(nodes: StudyNodes) -> None:
    """A node for every network and data set."""
    section = nodes.section(KnnSection)
    # "crop" tells these features from those of version 0.1, whose crop was a pixel beside torchvision's at some sizes.
    facets = features.Facets(section.facet)
    crop = {"facet": facets.exported, "transform": {"mode": "center_crop", "size": section.size}, "crop": "torchvision"}
    for model in nodes.models:
        for name in section.datasets:
            context = {**nodes.context(model.variant, model.epoch), "dataset": name}
            settings = {**settings_for_key(section, without={"datasets", "size", "facet"}), "context": context}
            val = features.of_split(nodes, model, "classes", name, "val", crop, facets.suffix)
            for facet, suffix, read in facets.readers():
                source = features.source_of(
                    nodes, model, "train", "classes", name, "train", crop, facets.suffix,
                    stored=section.backend == "ivf", read=facet,
                )  # fmt: skip
                nodes.add(
                    STAGE,
                    f"{model.place}/{name}{suffix}",
                    {**settings, **source.settings, **read},
                    inputs={**source.inputs, "val": val},
                    data=data.of_dataset(
                        nodes, name, "val", *(("targets", "classes", split) for split in SPLITS), *source.contents
                    ),
                    runtime=source.runtime,
                    outside=source.outside,
                    variant=model.variant.name,
                )


def run(task: Task) -> None:
    """Classify the validation images."""
    from dinoskip.pipeline.inputs import open_features, open_split, open_store, row_context  # torch

    settings = {key: value for key, value in task.settings.items() if key in KnnConfig.model_fields}
    train, val = open_features(task, "train"), open_store(task, "val")
    train_set, val_set = (open_split(task, "classes", split) for split in SPLITS)
    knn.evaluate(
        train,
        val,
        train_set.labels_of(train.ids),
        val_set.labels_of(val.ids),
        train_set.class_names,
        task.out,
        validate(KnnConfig, RawConfig(settings)),
        row_context(task, val),
        device=task.device,
    )


STAGE = Stage(
    "knn",
    run,
    add_nodes,
    KnnSection,
    place="evaluate.knn",
    use="classes",
    measures="k-NN classification",
    check=check,
    version=3,
    command=Command("classify by k-NN on the CLS token of every block", "evaluate.knn.k=[20]", kind="folder"),
)
