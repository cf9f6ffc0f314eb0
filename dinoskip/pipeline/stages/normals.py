"""The stage ``normals``: surface normals by linear heads on every block, all learning rates in one stacked fit."""

from __future__ import annotations

from pydantic import Field

from dinoskip.config import RawConfig, settings_for_key, validate
from dinoskip.pipeline.fields import READ_AT, Facets, Names
from dinoskip.pipeline.live_nodes import add_live_nodes, facet_settings, fit_and_score
from dinoskip.pipeline.stage import Command, Stage, StudyNodes, Task
from eval import normals
from eval.normals.config import NormalsConfig


class NormalsSection(NormalsConfig):
    """Surface normals by linear heads on frozen features (docs/heads.md)."""

    datasets: Names = Field((), description="keys of data, with surface normals")
    train_split: str = Field("train", description="whose images the heads are fitted on")
    val_split: str = Field("test", description="whose images are reported")
    facet: Facets = Field(("out",), description=READ_AT)


def add_nodes(nodes: StudyNodes) -> None:
    """A node for every network and data set."""
    section = nodes.section(NormalsSection)
    splits = (section.train_split, section.val_split)
    settings = settings_for_key(section, without={"datasets", "facet"})
    further = facet_settings(nodes, section.facet)
    add_live_nodes(nodes, STAGE, "normals", section.datasets, splits, settings, further)


def run(task: Task) -> None:
    """Fit and score."""
    section = validate(NormalsSection, RawConfig(dict(task.settings["normals"])))
    fit_and_score(task, "normals", section, normals.evaluate)


STAGE = Stage(
    "normals",
    run,
    add_nodes,
    NormalsSection,
    place="evaluate.normals",
    use="normals",
    measures="surface normals",
    version=3,
    command=Command(
        "fit linear heads of surface normals on every block of a backbone",
        "evaluate.normals.epochs=2",
        kind="nyu_normals",
    ),
)
