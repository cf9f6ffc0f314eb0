"""The stage ``linear``: linear classification on every block, all inputs and learning rates in one stacked fit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pydantic import Field

from dinoskip.config import RawConfig, settings_for_key, validate
from dinoskip.pipeline.fields import Names
from dinoskip.pipeline.live_nodes import add_live_nodes
from dinoskip.pipeline.stage import Command, Problem, Stage, StudyNodes, Task, not_multiples
from eval import linear
from eval.linear.config import PROTOCOLS, LinearConfig

if TYPE_CHECKING:
    from dinoskip.pipeline.sections import StudyBase
    from dinoskip.pipeline.variants import Variant


class LinearSection(LinearConfig):
    """Linear classification of images (docs/heads.md): a protocol, and settings of it that are changed."""

    datasets: Names = Field((), description="keys of data, with classes")
    train_split: str = Field("train", description="whose images the heads are fitted on")
    val_split: str = Field("val", description="whose images are reported")


def check(study: StudyBase, variants: tuple[Variant, ...]) -> Iterator[Problem]:
    """Crops must be whole patches."""
    section = study.section(LinearSection)
    yield from not_multiples({"evaluate.linear.size": section.size}, variants, unless=not section.datasets)


def add_nodes(nodes: StudyNodes) -> None:
    """A node for every network and data set."""
    section = nodes.section(LinearSection)
    splits = (section.train_split, section.val_split)
    add_live_nodes(nodes, STAGE, "classes", section.datasets, splits, settings_for_key(section, without={"datasets"}))


def run(task: Task) -> None:
    """Fit and score."""
    from dinoskip.pipeline.inputs import multiscale_blocks, open_backbone, open_split, row_context  # torch

    settings = task.settings
    section = validate(LinearSection, RawConfig(dict(settings["linear"])))
    backbone = open_backbone(settings, task.inputs.get("weights"), task.device)
    linear.evaluate(
        backbone, open_split(task, "classes", section.train_split), open_split(task, "classes", section.val_split),
        settings["blocks"], task.out, section, row_context(task, backbone), split=section.val_split,
        seed=settings["seed"], multiscale=multiscale_blocks(task, backbone.depth), workers=task.workers,
    )  # fmt: skip


STAGE = Stage(
    "linear",
    run,
    add_nodes,
    LinearSection,
    place="evaluate.linear",
    use="classes",
    measures="linear classification",
    check=check,
    command=Command(
        "fit linear classifiers on every block of a backbone",
        "evaluate.linear.epochs=10",
        kind="folder",
        options=(
            (
                "--protocol", "NAME", "evaluate.linear.protocol={}",
                f"{', '.join(PROTOCOLS)} (docs/heads.md; default: dinov2)",
            ),
        ),
    ),
)  # fmt: skip
