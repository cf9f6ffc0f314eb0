"""The stage ``saliency``: the object of every image as a mask, every block, scored."""

from __future__ import annotations

from pydantic import Field

from dinoskip.config import RawConfig, settings_for_key, validate
from dinoskip.pipeline.fields import READ_AT, Facets, Names
from dinoskip.pipeline.part_nodes import add_part_nodes, evaluate_parts
from dinoskip.pipeline.stage import Command, Stage, StudyNodes, Task
from eval import saliency
from eval.saliency.config import SaliencyConfig

ROUNDED = {"mode": "rounded", "resample": "lanczos"}
STUDY_KEYS = {"datasets", "split", "facet"}


class SaliencySection(SaliencyConfig):
    """Saliency (docs/parts.md): the object of an image as a mask, and the bilateral solver after it."""

    datasets: Names = Field((), description="keys of data, with masks; whatever is neither 0 nor 255 is the object")
    split: str = Field("test", description="whose images are cut; scenes and VOC have val")
    facet: Facets = Field(("key",), description=READ_AT)


def add_nodes(nodes: StudyNodes) -> None:
    """A node for every network and data set."""
    section = nodes.section(SaliencySection)
    add_part_nodes(
        nodes, STAGE, "segmentation", section.datasets, section.split, settings_for_key(section, without=STUDY_KEYS),
        section.facet, {"transform": ROUNDED}, f"-{'+'.join(section.facet)}-rounded", reads=("images", "targets"),
    )  # fmt: skip


def run(task: Task) -> None:
    """Cut and score every image at every block."""
    config = validate(SaliencyConfig, RawConfig(dict(task.settings["saliency"])))
    evaluate_parts(task, "segmentation", config, saliency.evaluate)


STAGE = Stage(
    "saliency",
    run,
    add_nodes,
    SaliencySection,
    place="evaluate.saliency",
    use="segmentation",
    measures="saliency",
    resumes=True,
    version=2,
    command=Command(
        "find the object of every image as a mask, with every block", "evaluate.saliency.solver=true", kind="ecssd"
    ),
)
