"""The stage ``cluster``: patches clustered without labels at every block, clusters matched to classes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from dinoskip.config import RawConfig, settings_for_key, validate
from dinoskip.pipeline.fields import READ_AT, Facets, Names
from dinoskip.pipeline.stage import Command, Problem, Stage, StudyNodes, Task, not_multiples
from dinoskip.pipeline.stages import data, features
from eval import cluster
from eval.cluster.config import PROTOCOLS, TRAIN_CROP, ClusteringConfig

if TYPE_CHECKING:
    from dinoskip.pipeline.sections import StudyBase
    from dinoskip.pipeline.variants import Variant


class ClusterSection(ClusteringConfig):
    """Unsupervised segmentation (docs/parts.md): a protocol, and settings of it that are changed."""

    datasets: Names = Field((), description="keys of data, with masks")
    train_split: str = Field("train", description="whose patches are clustered, where the protocol's are of train")
    val_split: str = Field("val", description="whose images are reported")
    facet: Facets = Field(("out",), description=READ_AT)


def check(study: StudyBase, variants: tuple[Variant, ...]) -> Iterator[Problem]:
    """Square images must be whole patches."""
    section = study.section(ClusterSection)
    sizes: dict[str, int | None] = {"evaluate.cluster.size": section.size}
    if section.sizing == "crop" and section.fitted_on == "train":
        sizes["evaluate.cluster.sizing"] = TRAIN_CROP
    yield from not_multiples(sizes, variants, unless=not section.datasets)


def _sized(section: ClusterSection, part: Literal["train", "val"]) -> tuple[dict[str, Any], str]:
    """How the images of a part are sized, and what tells the features' node from others."""
    transform = section.transform(part)
    facets = features.Facets(section.facet)
    return {
        "facet": facets.exported,
        "transform": transform,
    }, f"-cluster-{section.sizing}-{transform['size']}{facets.suffix}"


def add_nodes(nodes: StudyNodes) -> None:
    """A node for every network and data set."""
    section = nodes.section(ClusterSection)
    for model in nodes.models:
        for name in section.datasets:
            val = features.of_split(nodes, model, "segmentation", name, section.val_split, *_sized(section, "val"))
            for facet, suffix, read in features.Facets(section.facet).readers():
                source = features.Source({})
                if section.fitted_on == "train":
                    wanted = (nodes, model, "train", "segmentation", name, section.train_split)
                    source = features.source_of(
                        *wanted, *_sized(section, "train"), stored=not section.passes_once, read=facet
                    )
                nodes.add(
                    STAGE,
                    f"{model.place}/{name}{suffix}",
                    {
                        "cluster": settings_for_key(section, without={"datasets", "facet"}),
                        "seed": nodes.study.seed,
                        "context": {**nodes.context(model.variant, model.epoch), "dataset": name},
                        **source.settings,
                        **read,
                    },
                    inputs={**source.inputs, "val": val},
                    data=data.of_dataset(
                        nodes, name, section.val_split, ("targets", "segmentation", section.val_split), *source.contents
                    ),
                    runtime=source.runtime,
                    outside=source.outside,
                    variant=model.variant.name,
                )


def run(task: Task) -> None:
    """Cluster and score."""
    from dinoskip.pipeline.inputs import open_features, open_split, open_store, row_context  # torch

    section = validate(ClusterSection, RawConfig(dict(task.settings["cluster"])))
    val = open_store(task, "val")
    cluster.evaluate(
        open_features(task, "train") if section.fitted_on == "train" else val,
        val,
        open_split(task, "segmentation", section.val_split),
        task.out,
        section,
        row_context(task, val),
        fitted_on=section.train_split if section.fitted_on == "train" else section.val_split,
        seed=task.settings["seed"],
        device=task.device,
    )


STAGE = Stage(
    "cluster",
    run,
    add_nodes,
    ClusterSection,
    place="evaluate.cluster",
    use="segmentation",
    measures="unsupervised segmentation",
    check=check,
    version=3,
    command=Command(
        "cluster patches without labels at every block and match clusters to classes",
        "evaluate.cluster.clusters=[21,100]",
        options=(
            (
                "--protocol", "NAME", "evaluate.cluster.protocol={}",
                f"{', '.join(PROTOCOLS)} (docs/parts.md; default: ours)",
            ),
        ),
    ),
)  # fmt: skip
