"""The stage ``report``: rows, curves and settings of a whole study on one page, from whatever stages are there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dinoskip.pipeline.report.notices import PREPARED
from dinoskip.pipeline.report.settings import ReportSettings
from dinoskip.pipeline.sections import StudyBase
from dinoskip.pipeline.stage import Problem, Stage, StudyNodes, Task
from dinoskip.pipeline.stages.pretrain import PretrainSection
from dinoskip.pipeline.stages.settings import FREE
from dinoskip.pipeline.stages.supervise import SuperviseSection
from dinoskip.pipeline.stages.sweep import SweepSection
from dinoskip.pipeline.stages.weights import recipe_of
from dinoskip.pipeline.variants import Variant
from dinoskip.settings.config import dump
from dinoskip.settings.tasks import tasks
from visualize.report.config import ReportConfig

_NOT_ON_CARD = {
    "name", "output", "stages", "device", "storage", "run", "accept", "data", "model", "optimizer", "variants",
    "gallery", "report",
}  # fmt: skip
"""Parts of a study that the card of settings leaves out: they change no number, or stand elsewhere on the page."""


def add_nodes(nodes: StudyNodes) -> None:
    """One node, which reads all that has rows, logs or pictures; for costs every stage."""
    study, section = nodes.study, nodes.study.section(ReportConfig)
    read = [name for name, node in nodes.nodes.items() if section.costs or node.stage not in PREPARED]
    runtime = {"study": study.model_dump(mode="json", exclude={"output"})}
    nodes.add(STAGE, "", settings_of(study, nodes.variants), inputs={name: name for name in read}, runtime=runtime)


def settings_of(study: StudyBase, variants: tuple[Variant, ...]) -> ReportSettings:
    """Return the settings that a study's report reads."""
    return ReportSettings(study.section(ReportConfig), study.name, _card(study), variants, study.data, recipe_of(study))


def check(study: StudyBase, variants: tuple[Variant, ...]) -> Iterator[Problem]:
    """No two networks may stand in one cell of a published table."""
    if study.section(ReportConfig).compare:
        from dinoskip.pipeline.report.places import contested  # its stages' modules import this package

        yield from (("report.compare", line) for line in contested(study, variants))


def _card(study: StudyBase) -> dict[str, Any]:
    """Every setting of the study that can change a number, without measures that were not asked for."""
    sections: dict[str, Any] = {record.name: study.section(record.section) for record in tasks()}
    tasks_left_out = [name for name, section in sections.items() if not section.datasets]
    used = {"supervise": study.find(SuperviseSection), "online": study.online.parts, "sweep": study.find(SweepSection)}
    card = study.model_dump(
        mode="json",
        exclude={
            **dict.fromkeys(_NOT_ON_CARD | {name for name, section in used.items() if not section}, True),
            "evaluate": {"features", "precision", *tasks_left_out},
            "supervise": set(FREE) if used["supervise"] else True,
        },
    )
    if study.precision != "fp32":
        card["evaluate"]["precision"] = study.precision
    pretrain = study.find(PretrainSection)
    if pretrain is not None:
        card["pretrain"] = {
            key: value for key, value in dump(pretrain).items() if key not in FREE and value is not None
        }
    return card


def run(task: Task) -> None:
    """Write the page and all that stands beside it, a copy of the gallery, and ``study.yaml``."""
    from dinoskip.pipeline.report.page import write_page  # draws: matplotlib and torch

    write_page(task)


STAGE = Stage("report", run, add_nodes, ReportConfig, place="report", check=check, version=32, reads_stores=False)
