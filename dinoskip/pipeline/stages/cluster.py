"""The stage ``cluster``: patches clustered without labels at every block, clusters matched to classes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pydantic import Field

from dinoskip.config import RawConfig, settings_for_key, validate
from dinoskip.pipeline.fields import Names
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


def check(study: StudyBase, variants: tuple[Variant, ...]) -> Iterator[Problem]:
    """Square images must be whole patches."""
    section = study.section(ClusterSection)
    sizes: dict[str, int | None] = {"evaluate.cluster.size": section.size}
    if section.sizing == "crop" and section.fitted_on == "train":
        sizes["evaluate.cluster.sizing"] = TRAIN_CROP
    yield from not_multiples(sizes, variants, unless=not section.datasets)


def add_nodes(nodes: StudyNodes) -> None:
    """A node for every network and data set."""
    section = nodes.section(ClusterSection)
    splits = {"val": section.val_split}
    if section.fitted_on == "train":
        splits["train"] = section.train_split
    for model in nodes.models:
        for name in section.datasets:
            inputs = {}
            for part, split in splits.items():
                transform = section.transform("train" if part == "train" else "val")
                sized = {"facet": "out", "transform": transform}
                suffix = f"-cluster-{section.sizing}-{transform['size']}"
                inputs[part] = features.of_split(nodes, model, "segmentation", name, split, sized, suffix)
            nodes.add(
                STAGE,
                f"{model.place}/{name}",
                {
                    "cluster": settings_for_key(section, without={"datasets"}),
                    "seed": nodes.study.seed,
                    "context": {**nodes.context(model.variant, model.epoch), "dataset": name},
                },
                inputs=inputs,
                data=data.of_dataset(nodes, name, section.val_split, ("targets", "segmentation", section.val_split)),
                variant=model.variant.name,
            )


def run(task: Task) -> None:
    """Cluster and score."""
    from dinoskip.pipeline.inputs import open_split, open_store, row_context  # torch

    section = validate(ClusterSection, RawConfig(dict(task.settings["cluster"])))
    val = open_store(task, "val")
    cluster.evaluate(
        open_store(task, "train") if section.fitted_on == "train" else val,
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
