"""The stage ``report``: rows, curves and settings of a whole study on one page, from whatever stages are there."""

from __future__ import annotations

from typing import Any

from dinoskip.config import settings_for_key
from dinoskip.pipeline.report.notices import PREPARED
from dinoskip.pipeline.report.settings import ReportSettings
from dinoskip.pipeline.stage import Stage, StudyNodes, Task
from dinoskip.pipeline.stages.pretrain import FREE, PretrainSection
from dinoskip.pipeline.stages.weights import recipe_of
from visualize.report.config import ReportConfig

_NOT_ON_CARD = {"name", "output", "stages", "storage", "data", "model", "optimizer", "variants", "gallery", "report"}
"""Parts of a study that the card of settings leaves out: they change no number, or stand elsewhere on the page."""


def add_nodes(nodes: StudyNodes) -> None:
    """One node, which reads all that has rows, logs or pictures; for costs every stage."""
    study, section = nodes.study, nodes.section(ReportConfig)
    read = [name for name, node in nodes.nodes.items() if section.costs or node.stage not in PREPARED]
    recipe = recipe_of(study)
    settings = ReportSettings(
        section,
        study.name,
        _card(nodes),
        nodes.variants,
        study.data,
        recipe.epochs if recipe else 0,
        recipe.dataset if recipe else "",
    )
    runtime = {"study": study.model_dump(mode="json", exclude={"output"})}
    nodes.add(STAGE, "", settings, inputs={name: name for name in read}, runtime=runtime)


def _card(nodes: StudyNodes) -> dict[str, Any]:
    """Every setting of the study that can change a number."""
    card = nodes.study.model_dump(mode="json", exclude=_NOT_ON_CARD)
    if (recipe := nodes.study.find(PretrainSection)) is not None:
        card["pretrain"] = settings_for_key(recipe)
    card["evaluate"] = {
        name: value
        for name, value in card["evaluate"].items()
        if name != "features" and not (isinstance(value, dict) and value.get("datasets") == [])
    }  # without measures that were not asked for
    for section in ("pretrain", "supervise"):
        for key in FREE:
            (card[section] or {}).pop(key, None)
    for section, used in (
        ("supervise", card["supervise"]),
        ("online", nodes.study.online.parts),
        ("sweep", card["sweep"]),
    ):
        if not used:
            card.pop(section)
    return card


def run(task: Task) -> None:
    """Write the page and all that stands beside it, a copy of the gallery, and ``study.yaml``."""
    from dinoskip.pipeline.report.page import write_page  # draws: matplotlib and torch

    write_page(task)


STAGE = Stage("report", run, add_nodes, ReportConfig, place="report", version=22, reads_stores=False)
