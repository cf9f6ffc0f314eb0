"""The stage ``retrieve``: validation patches labelled by the nearest training patches, every block."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pydantic import Field

from dinoskip.config import RawConfig, settings_for_key, validate
from dinoskip.pipeline.fields import READ_AT, Facets, Names
from dinoskip.pipeline.stage import Command, Problem, Stage, StudyNodes, Task, not_multiples
from dinoskip.pipeline.stages import data, features
from dinoskip.pipeline.stages.probe import ProbeSection
from eval import retrieval
from eval.retrieval.config import RetrievalConfig

if TYPE_CHECKING:
    from dinoskip.pipeline.sections import StudyBase
    from dinoskip.pipeline.variants import Variant


class RetrieveSection(RetrievalConfig):
    """Dense retrieval (docs/retrieval.md): resolution, how many training patches are remembered, how they vote."""

    datasets: Names = Field((), description="keys of data, with masks")
    train_split: str = Field("train", description="whose patches are the memory")
    val_split: str = Field("val", description="whose images are reported")
    facet: Facets = Field(("out",), description=READ_AT)


def check(study: StudyBase, variants: tuple[Variant, ...]) -> Iterator[Problem]:
    """Square images must be whole patches."""
    section = study.section(RetrieveSection)
    yield from not_multiples({"evaluate.retrieve.size": section.size}, variants, unless=not section.datasets)


def add_nodes(nodes: StudyNodes) -> None:
    """A node for every network and data set."""
    section = nodes.section(RetrieveSection)
    facets = features.Facets(section.facet)
    square = {"facet": facets.exported, "transform": {"mode": "square", "size": section.size}}
    sized = "" if section.size == nodes.section(ProbeSection).size else str(section.size)
    splits = {"train": section.train_split, "val": section.val_split}
    for model in nodes.models:
        for name in section.datasets:
            settings = {
                "retrieve": settings_for_key(section, without={"datasets", "facet"}),
                "seed": nodes.study.seed,
                "context": {**nodes.context(model.variant, model.epoch), "dataset": name},
            }
            use = "segmentation"
            of_store = f"{sized}{facets.suffix}"
            val = features.of_split(nodes, model, use, name, splits["val"], square, of_store)
            hashes = [("targets", "segmentation", split) for split in splits.values()]
            for facet, suffix, read in facets.readers():
                train = features.source_of(
                    nodes, model, "train", use, name, splits["train"], square, of_store, read=facet
                )
                nodes.add(
                    STAGE,
                    f"{model.place}/{name}{suffix}",
                    {**settings, **train.settings, **read},
                    inputs={**train.inputs, "val": val},
                    data=data.of_dataset(nodes, name, section.val_split, *hashes, *train.contents),
                    runtime=train.runtime,
                    outside=train.outside,
                    variant=model.variant.name,
                )


def run(task: Task) -> None:
    """Segment the validation images."""
    from dinoskip.pipeline.inputs import open_features, open_split, open_store, row_context  # torch

    section = validate(RetrieveSection, RawConfig(dict(task.settings["retrieve"])))
    train, val = open_features(task, "train"), open_store(task, "val")
    retrieval.evaluate(
        train,
        val,
        open_split(task, "segmentation", section.train_split),
        open_split(task, "segmentation", section.val_split),
        task.out,
        section,
        row_context(task, val),
        seed=task.settings["seed"],
        device=task.device,
    )


STAGE = Stage(
    "retrieve",
    run,
    add_nodes,
    RetrieveSection,
    place="evaluate.retrieve",
    use="segmentation",
    measures="dense retrieval",
    check=check,
    version=4,
    command=Command("segment by the nearest training patches, with every block", "evaluate.retrieve.k=30"),
)
