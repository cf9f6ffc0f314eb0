"""The stage ``objects``: several objects of every image by MaskCut, every block, AP and AR."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pydantic import Field

from dinoskip.config import RawConfig, settings_for_key, validate
from dinoskip.pipeline.fields import READ_AT, Facets, Names
from dinoskip.pipeline.part_nodes import add_part_nodes, evaluate_parts
from dinoskip.pipeline.stage import Command, Problem, Stage, StudyNodes, Task, not_multiples
from eval import objects
from eval.objects.config import ObjectsConfig

if TYPE_CHECKING:
    from dinoskip.pipeline.sections import StudyBase
    from dinoskip.pipeline.variants import Variant


class ObjectsSection(ObjectsConfig):
    """Several objects of an image (docs/parts.md): thresholds, how many, at which size."""

    datasets: Names = Field((), description="keys of data, with boxes")
    split: str = Field("trainval", description="whose images are cut")
    facet: Facets = Field(("key",), description=READ_AT)


STUDY_KEYS = {"datasets", "split", "facet"}


def check(study: StudyBase, variants: tuple[Variant, ...]) -> Iterator[Problem]:
    """Square images must be whole patches."""
    section = study.section(ObjectsSection)
    yield from not_multiples({"evaluate.objects.size": section.size}, variants, unless=not section.datasets)
    boxes_alone = [name for name in section.datasets if study.data[name].kind not in {"coco_json", "coco20k"}]
    if section.masks and boxes_alone:
        yield "evaluate.objects.masks", f"{boxes_alone[0]} has boxes alone: kinds coco_json and coco20k have outlines"


def add_nodes(nodes: StudyNodes) -> None:
    """A node for every network and data set."""
    section = nodes.section(ObjectsSection)
    transform = {"mode": "square", "size": section.size, "resample": "lanczos"}
    add_part_nodes(
        nodes, STAGE, "detection", section.datasets, section.split, settings_for_key(section, without=STUDY_KEYS),
        section.facet, {"transform": transform}, f"-{'+'.join(section.facet)}-{section.size}", reads=("targets",),
    )  # fmt: skip


def run(task: Task) -> None:
    """Find the objects of every image at every block."""
    config = validate(ObjectsConfig, RawConfig(dict(task.settings["objects"])))
    evaluate_parts(task, "detection", config, objects.evaluate)


STAGE = Stage(
    "objects",
    run,
    add_nodes,
    ObjectsSection,
    place="evaluate.objects",
    use="detection",
    measures="discovery of several objects",
    check=check,
    resumes=True,
    version=2,
    command=Command("discover several objects an image in every block by MaskCut", "evaluate.objects.rounds=3"),
)
