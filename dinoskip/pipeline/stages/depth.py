"""The stage ``depth``: linear depth heads on every block, all learning rates in one stacked fit."""

from __future__ import annotations

from pydantic import Field

from dinoskip.config import RawConfig, settings_for_key, validate
from dinoskip.pipeline.fields import READ_AT, Facets, Names
from dinoskip.pipeline.live_nodes import add_live_nodes, facet_settings, fit_and_score
from dinoskip.pipeline.stage import Command, Stage, StudyNodes, Task
from eval import depth
from eval.depth.config import PROTOCOLS, DepthConfig


class DepthSection(DepthConfig):
    """Depth by linear heads on frozen features (docs/heads.md): a protocol, and settings of it that are changed."""

    datasets: Names = Field((), description="keys of data, with depth maps")
    train_split: str = Field("train", description="whose images the heads are fitted on")
    val_split: str = Field("test", description="whose images are reported")
    facet: Facets = Field(("out",), description=READ_AT)


def add_nodes(nodes: StudyNodes) -> None:
    """A node for every network and data set."""
    section = nodes.section(DepthSection)
    splits = (section.train_split, section.val_split)
    settings = settings_for_key(section, without={"datasets", "facet"})
    further = facet_settings(nodes, section.facet)
    add_live_nodes(nodes, STAGE, "depth", section.datasets, splits, settings, further)


def run(task: Task) -> None:
    """Fit and score."""
    section = validate(DepthSection, RawConfig(dict(task.settings["depth"])))
    fit_and_score(task, "depth", section, depth.evaluate)


STAGE = Stage(
    "depth",
    run,
    add_nodes,
    DepthSection,
    place="evaluate.depth",
    use="depth",
    measures="depth",
    version=2,
    command=Command(
        "fit linear depth heads on every block of a backbone",
        "evaluate.depth.iterations=2000",
        kind="nyu",
        options=(
            (
                "--protocol", "NAME", "evaluate.depth.protocol={}",
                f"{', '.join(PROTOCOLS)} (docs/heads.md; default: dinov2)",
            ),
        ),
    ),
)  # fmt: skip
