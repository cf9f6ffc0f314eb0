"""The stage ``analyze``: weights of fresh and trained networks, signal propagation, and what is inside on photographs.

``dinoskip analyze`` shows the same on the command line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace

from dinoskip.init.config import ModelConfig
from dinoskip.io.files import write_json
from dinoskip.pipeline.graph import NodeSettings
from dinoskip.pipeline.sections import StudyBase
from dinoskip.pipeline.stage import (
    DataInputs,
    Problem,
    Shown,
    ShownOf,
    Stage,
    StudyNodes,
    Task,
    beyond_depth,
    not_multiples,
    unknown_data,
)
from dinoskip.pipeline.stages import data
from dinoskip.pipeline.stages.pretrain import WEIGHTS, start_of
from dinoskip.pipeline.variants import Variant
from dinoskip_diagnostics.config import AnalyzeSection
from dinoskip_diagnostics.results import RESULT

_START = " start"  # of roles: weights with which a variant begins


@dataclass(frozen=True)
class AnalyzeSettings(NodeSettings):
    """Settings of an analysis: the seed and the models of fresh networks, by variant, and what is looked at."""

    seed: int
    models: Mapping[str, ModelConfig]
    signal: AnalyzeSection


def check(study: StudyBase, variants: tuple[Variant, ...]) -> Iterator[Problem]:
    """The block must be there, the data set be known, and crops be whole patches."""
    section = study.section(AnalyzeSection)
    if not section.enabled:
        return
    if section.spectrum is not None:
        yield from beyond_depth({"analyze.spectrum": [section.spectrum]}, variants)
    for key, part in (("quantise", section.quantise), ("label_free", section.label_free)):
        if part is None:
            continue
        yield from not_multiples({f"analyze.{key}.size": part.size}, variants)
        yield from unknown_data(study, f"analyze.{key}.dataset", part.dataset)
    if section.quantise and section.label_free and section.quantise.dataset != section.label_free.dataset:
        yield "analyze.label_free.dataset", f"must be that of analyze.quantise, {section.quantise.dataset!r}"


def add_nodes(nodes: StudyNodes) -> None:
    """One node for the whole study, none if the section is not enabled."""
    section = nodes.study.section(AnalyzeSection)
    if not section.enabled:
        return
    fresh = {variant.name: variant.model for variant in nodes.variants if variant.model is not None}
    settings = AnalyzeSettings(nodes.study.seed, fresh, section)
    weights = {f"{node.variant.name} ep{node.epoch}": node.weights for node in nodes.models if node.weights}
    begun = {
        f"{variant.name}{_START}": node for variant in nodes.variants for node in start_of(nodes, variant).values()
    }
    images = DataInputs()
    contents: list[tuple[str, ...]] = []
    if section.quantise is not None:
        contents += [(what, "classes", split) for what in ("images", "targets") for split in section.quantise.splits]
    if section.label_free is not None:
        contents.append(("images", "pretraining", "train"))
    asked = section.quantise or section.label_free
    if asked is not None and weights:
        images = data.of_dataset(nodes, asked.dataset, "train", *contents)
    nodes.add(STAGE, "", settings, inputs={**weights, **begun}, data=images)


def run(task: Task) -> None:
    """Measure fresh and trained networks, and write ``analysis.json``."""
    from dinoskip_diagnostics.tables import analysis, quantised, without_labels  # torch

    specs = {role: f"weights:{path / WEIGHTS}" for role, path in sorted(task.inputs.items()) if role != "data"}
    trained = {role: spec for role, spec in specs.items() if not role.endswith(_START)}
    settings: AnalyzeSettings = task.settings
    section = settings.signal
    fresh = {name: specs.get(f"{name}{_START}") or model for name, model in settings.models.items()}
    result = analysis(fresh, trained, section, settings.seed)
    if section.quantise is not None:
        result = replace(result, quantised=[asdict(score) for score in quantised(task, section.quantise, trained)])
    if section.label_free is not None and trained:
        result = replace(result, label_free=without_labels(task, section.label_free, trained))
    write_json(task.out / RESULT, result.plain())


def shows(of: ShownOf) -> Shown:
    """Figures and tables of the analysis in the report."""
    from dinoskip_diagnostics.page import shown  # matplotlib

    return shown(of)


STAGE = Stage("analyze", run, add_nodes, AnalyzeSection, place="analyze", check=check, version=6, shows=shows, order=10)
