"""The stage ``linear``: linear classification on every block, all inputs and learning rates in one stacked fit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pydantic import Field

from dinoskip.config import RawConfig, settings_for_key, validate
from dinoskip.pipeline.fields import READ_AT, Facets, Names
from dinoskip.pipeline.live_nodes import add_live_nodes, facet_settings, fit_and_score
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
    facet: Facets = Field(("out",), description=READ_AT)


def check(study: StudyBase, variants: tuple[Variant, ...]) -> Iterator[Problem]:
    """Crops must be whole patches."""
    section = study.section(LinearSection)
    yield from not_multiples({"evaluate.linear.size": section.size}, variants, unless=not section.datasets)


def add_nodes(nodes: StudyNodes) -> None:
    """A node for every network and data set."""
    section = nodes.section(LinearSection)
    splits = (section.train_split, section.val_split)
    settings = settings_for_key(section, without={"datasets", "facet"})
    further = facet_settings(nodes, section.facet)
    add_live_nodes(nodes, STAGE, "classes", section.datasets, splits, settings, further)


def run(task: Task) -> None:
    """Fit and score."""
    section = validate(LinearSection, RawConfig(dict(task.settings["linear"])))
    fit_and_score(task, "classes", section, linear.evaluate, split=section.val_split)


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
