"""The one stage of all evaluation tasks: its nodes for every network, data set and facet, and how they run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from dinoskip.pipeline.inputs import open_backbone, open_features, open_split
from dinoskip.pipeline.settings import FeatureSettings, TaskSettings
from dinoskip.pipeline.stage import (
    Command,
    Content,
    EvaluatedModel,
    Problem,
    Stage,
    StudyNodes,
    Task,
    not_multiples,
    quarters,
)
from dinoskip.pipeline.stages import data, features
from dinoskip.read_points import usual_norm
from dinoskip.tasks import EvaluationTask, FeatureRequest, TaskInputs, task

if TYPE_CHECKING:
    from dinoskip.pipeline.sections import StudyBase
    from dinoskip.pipeline.variants import Variant


@dataclass(frozen=True)
class _Reading:
    """One node's share of the facets: what its name ends in, and its settings of what it reads."""

    suffix: str
    facets: Sequence[str]
    norms: Sequence[str] = ()
    stated: Mapping[str, Any] = field(default_factory=dict)
    read: str | None = None


def add_nodes(record: EvaluationTask, stage: Stage, nodes: StudyNodes) -> None:
    """A node for every network, data set and facet; a network's own facets of one width are read together."""
    section: Any = nodes.section(record.section)
    requests = record.features(section)
    readings = _stored(record, nodes, section) if requests else _live(record, nodes, section)
    for model in nodes.models:
        for name in section.datasets:
            for reading in readings:
                _add_node(record, stage, nodes, model, name, requests, reading)


def _facets(section: Any) -> tuple[str, ...]:
    return getattr(section, "facet", ("out",))


def _several_norms(record: EvaluationTask, nodes: StudyNodes) -> bool:
    """Whether features are stored without norm, for the task to apply several by the network itself."""
    return "norms" in record.study_settings and len(nodes.study.evaluate.norm) > 1


def _stored(record: EvaluationTask, nodes: StudyNodes, section: Any) -> list[_Reading]:
    """A node for each facet; stores have them all."""
    every, norms = _facets(section), nodes.study.evaluate.norm
    return [
        _Reading(
            f"-{facet}" if at else "",
            (facet,),
            tuple(dict.fromkeys(usual_norm(facet, norm) for norm in norms)),
            read=facet if len(every) > 1 else None,
        )
        for at, facet in enumerate(every)
    ]


def _live(record: EvaluationTask, nodes: StudyNodes, section: Any) -> list[_Reading]:
    """A node for all facets of one width. The key says facets that are not the usual, and norms that they have."""
    norms, together = nodes.study.evaluate.norm, dict[bool, list[str]]()
    for facet in _facets(section):
        together.setdefault(facet == "hidden", []).append(facet)
    readings = []
    for at, facets in enumerate(together.values()):
        stated: dict[str, Any] = {}
        if facets != ["out"] or _facets(type(section)()) != ("out",):
            stated["facet"] = facets[0] if len(facets) == 1 else facets
        read_under: Sequence[str] = tuple(dict.fromkeys(norms))
        if record.norm_of_facets:
            read_under = [usual_norm(facet, norms[0]) for facet in facets]
            stated["norm"] = read_under[0] if len(facets) == 1 else read_under
        readings.append(_Reading(f"-{'+'.join(facets)}" if at else "", facets, read_under, stated))
    return readings


def _add_node(
    record: EvaluationTask,
    stage: Stage,
    nodes: StudyNodes,
    model: EvaluatedModel,
    name: str,
    requests: Sequence[FeatureRequest],
    reading: _Reading,
) -> None:
    section: Any = nodes.section(record.section)
    splits = list(record.splits(section).values())
    network = not requests or _several_norms(record, nodes)
    opened = ("images", "targets") if not requests or record.reads_images(section) else ("targets",)
    contents: list[Content] = [(what, record.label, split) for split in dict.fromkeys(splits) for what in opened]
    inputs: dict[str, str] = dict(model.inputs) if network else {}
    windows: dict[str, FeatureSettings] = {}
    for one in requests:
        wanted = FeatureSettings.of(nodes, record.label, _facets(section), one, _several_norms(record, nodes))
        if one.in_windows and nodes.study.evaluate.features == "window":
            windows[one.role] = wanted.in_windows(reading.read, model)
            inputs |= model.inputs
            contents.append(("images", record.label, one.split))
        else:
            inputs[one.role] = features.of_split(nodes, model, name, wanted)
    of_study = {
        "seed": nodes.study.seed,
        "multiscale": nodes.multiscale(model.variant),
        "blocks": nodes.study.evaluate.block_list,
        "norms": list(reading.norms),
    }
    settings = TaskSettings(
        record,
        section,
        {**nodes.context(model.variant, model.epoch), "dataset": name},
        {key: of_study[key] for key in record.study_settings},
        reading.facets,
        reading.norms,
        reading.stated,
        reading.read,
        windows,
        network,
        model.spec.get("backbone") if network else None,
    )
    nodes.add(
        stage,
        f"{model.place}/{name}{reading.suffix}",
        settings,
        inputs=inputs,
        data=data.of_dataset(nodes, name, splits[-1], *contents),
        runtime={"window": nodes.study.storage.window} if windows else {},
        outside=model.outside if network or windows else {},
        variant=model.variant.name,
    )


def run(of: Task) -> None:
    """Open what the task reads, and measure."""

    settings = of.settings
    record, section = settings.record, settings.section
    labels = {role: open_split(of, record.label, split) for role, split in record.splits(section).items()}
    found = {one.role: open_features(of, one.role) for one in record.features(section)}
    backbone = open_backbone(settings.backbone, of.inputs.get("weights"), of.device) if settings.network else None
    of_rows: Any = list(found.values())[-1] if found else backbone
    multiscale = settings.study.get("multiscale")
    left_out = list(labels.values())[-1].left_out
    record.evaluate(
        TaskInputs(
            section,
            labels,
            found,
            backbone,
            of.out,
            {
                **settings.context,
                "weights": of_rows.weights_hash,
                "depth": of_rows.depth,
                **({"left_out": left_out} if left_out else {}),
            },
            blocks=settings.study.get("blocks", "all"),
            facets=settings.facets,
            norms=settings.norms,
            multiscale=quarters(of_rows.depth) if multiscale == "quarters" else multiscale,
            seed=settings.study.get("seed", 0),
            device=of.device,
            workers=of.workers,
        )
    )


def check(record: EvaluationTask, study: StudyBase, variants: tuple[Variant, ...]) -> Iterator[Problem]:
    """Images must be whole patches, and what the task itself asks for."""
    section: Any = study.section(record.section)
    if not section.datasets:
        return
    place = f"evaluate.{record.name}"
    yield from not_multiples({f"{place}.{key}": size for key, size in record.sizes(section).items()}, variants)
    if all(name in study.data for name in section.datasets):
        yield from ((f"{place}.{key}", text) for key, text in record.check(section, study.data))


def stage_of(name: str) -> Stage:
    """The stage of a task."""
    record = task(name)
    command = Command(record.help, record.example, record.data_kind, record.options)
    stage = Stage(
        name,
        run,
        lambda nodes: add_nodes(record, stage, nodes),
        record.section,
        place=f"evaluate.{name}",
        use=record.label,
        measures=record.measures,
        check=partial(check, record),
        version=record.version,
        resumes=record.resumes,
        command=command,
    )
    return stage
