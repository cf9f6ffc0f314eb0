"""The stage ``normals``: surface normals by linear heads on every block, all learning rates in one stacked fit."""

from __future__ import annotations

from pydantic import Field

from dinoskip.config import RawConfig, settings_for_key, validate
from dinoskip.pipeline.fields import Names
from dinoskip.pipeline.live_nodes import add_live_nodes
from dinoskip.pipeline.stage import Command, Stage, StudyNodes, Task
from eval import normals
from eval.normals.config import NormalsConfig


class NormalsSection(NormalsConfig):
    """Surface normals by linear heads on frozen features (docs/heads.md)."""

    datasets: Names = Field((), description="keys of data, with surface normals")
    train_split: str = Field("train", description="whose images the heads are fitted on")
    val_split: str = Field("test", description="whose images are reported")


def add_nodes(nodes: StudyNodes) -> None:
    """A node for every network and data set."""
    section = nodes.section(NormalsSection)
    splits = (section.train_split, section.val_split)
    add_live_nodes(nodes, STAGE, "normals", section.datasets, splits, settings_for_key(section, without={"datasets"}))


def run(task: Task) -> None:
    """Fit and score."""
    from dinoskip.pipeline.inputs import multiscale_blocks, open_backbone, open_split, row_context  # torch

    settings = task.settings
    section = validate(NormalsSection, RawConfig(dict(settings["normals"])))
    backbone = open_backbone(settings, task.inputs.get("weights"), task.device)
    normals.evaluate(
        backbone, open_split(task, "normals", section.train_split), open_split(task, "normals", section.val_split),
        settings["blocks"], task.out, section, row_context(task, backbone), seed=settings["seed"],
        multiscale=multiscale_blocks(task, backbone.depth), workers=task.workers,
    )  # fmt: skip


STAGE = Stage(
    "normals",
    run,
    add_nodes,
    NormalsSection,
    place="evaluate.normals",
    use="normals",
    measures="surface normals",
    command=Command(
        "fit linear heads of surface normals on every block of a backbone",
        "evaluate.normals.epochs=2",
        kind="nyu_normals",
    ),
)
