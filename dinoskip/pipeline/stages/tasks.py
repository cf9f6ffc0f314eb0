"""The one stage of all evaluation tasks: its nodes for every network, data set and facet, and how they run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dinoskip.data.orientation import label_orientation
from dinoskip.data.verdicts import accepted_checks
from dinoskip.io.parts import ALONE
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
    whole_patches,
)
from dinoskip.pipeline.stages import data, features, pixels
from dinoskip.pipeline.stages.inputs import open_backbone, open_features, open_split
from dinoskip.pipeline.stages.settings import FeatureSettings, StudySettings, TaskSettings
from dinoskip.settings.read_points import usual_norm
from dinoskip.settings.tasks import EvaluationTask, FeatureRequest, TaskInputs, task, tasks
from eval.joined import join_parts

if TYPE_CHECKING:
    from dinoskip.features import FeatureSet
    from dinoskip.models import Backbone
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
    for model in nodes.models:
        section = in_whole_patches(record, nodes.study.section(record.section), model.variant)
        readings = _stored(record, nodes, section) if record.features(section) else _live(record, nodes, section)
        for name in section.datasets:
            for reading in readings:
                _add_node(record, stage, nodes, model, name, section, reading)


def in_whole_patches(record: EvaluationTask, section: Any, variant: Variant) -> Any:
    """The settings for one network: sizes that are the task's defaults are brought to whole patches of it.

    A size that was chosen stays, and is refused where it does not fit, as is one of a network whose patch is not known
    before it is opened.
    """
    if variant.network is None:
        return section
    by_protocol = {"protocol": section.protocol} if hasattr(section, "protocol") else {}
    usual, patch = record.section(**by_protocol), variant.network.patch
    return section.model_copy(
        update={
            key: whole_patches(size, patch)
            for key, size in record.sizes(section).items()
            if size is not None and size % patch and size == getattr(section, key, None) == getattr(usual, key, None)
        }
    )


def rounded_sizes(record: EvaluationTask, study: StudyBase, variants: Sequence[Variant]) -> Iterator[str]:
    """A line for each default size of a task that is another one for some networks."""
    section: Any = study.section(record.section)
    by_size: dict[tuple[str, int, int, int], list[str]] = {}
    for variant in variants if section.datasets else ():
        rounded = in_whole_patches(record, section, variant)
        for key, size in record.sizes(section).items():
            if size is not None and (new := record.sizes(rounded)[key]) != size and variant.network and new is not None:
                by_size.setdefault((key, size, new, variant.network.patch), []).append(variant.name)
    for (key, size, new, patch), names in by_size.items():
        yield f"evaluate.{record.name}.{key}: {new} for {size}, in whole patches of {patch}: {', '.join(names)}"


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
    section: Any,
    reading: _Reading,
) -> None:
    requests = record.features(section)
    splits, scored = list(record.splits(section).values()), record.scored_split(section)
    network = not requests or _several_norms(record, nodes) or record.needs_network(section)
    opened = ("images", "targets") if not requests or record.reads_images(section) else ("targets",)
    contents: list[Content] = [(what, record.label, split) for split in dict.fromkeys(splits) for what in opened]
    inputs: dict[str, str] = dict(model.inputs) if network else {}
    windows: dict[str, FeatureSettings] = {}
    for ask in requests:
        wanted = FeatureSettings.of(nodes, model, record.label, _facets(section), ask, _several_norms(record, nodes))
        # several facets are stored until used up: as windows each would be a pass of its own
        if reading.read is None and _in_windows(ask, nodes, model, name, wanted):
            windows[ask.role] = wanted.in_windows(model)
            inputs |= model.inputs
            contents.append(("images", record.label, ask.split))
        else:
            inputs[ask.role] = features.of_split(nodes, model, name, wanted)
    inputs |= pixels.of_task(record, nodes, model, name, section)
    of_study: dict[str, Any] = {
        "seed": nodes.study.seed,
        "multiscale": nodes.multiscale(model.variant),
        "blocks": nodes.blocks(model.variant),
        "norms": list(reading.norms),
    }
    settings = TaskSettings(
        record,
        section,
        {**nodes.context(model.variant, model.epoch), "dataset": name, **_precision(nodes.study)},
        StudySettings(**{key: of_study[key] for key in record.study_settings}),
        reading.facets,
        reading.norms,
        reading.stated,
        reading.read,
        windows,
        network,
        model.variant.backbone if network else None,
    )
    nodes.add(
        stage,
        f"{model.place}/{name}{reading.suffix}",
        settings,
        inputs=inputs,
        data=data.of_dataset(nodes, name, scored, *contents),
        runtime={"window": nodes.study.storage.window} if windows else {},
        outside=model.outside if network or windows else {},
        variant=model.variant.name,
    )


def _in_windows(
    ask: FeatureRequest, nodes: StudyNodes, model: EvaluatedModel, name: str, wanted: FeatureSettings
) -> bool:
    """Whether features of a network are computed as they are read: as the study says, or if no other task reads them.

    What two tasks with other labels read is taken to be the same images.
    """
    how = nodes.study.evaluate.features
    if how != "auto" or not ask.streamed:
        return ask.in_windows and how == "window"
    readers = 0
    for record in tasks():
        section = in_whole_patches(record, nodes.study.section(record.section), model.variant)
        for other in record.features(section) if name in section.datasets else ():
            of_other = FeatureSettings.of(
                nodes, model, record.label, _facets(section), other, _several_norms(record, nodes)
            )
            readers += _of_any_label(of_other) == _of_any_label(wanted)
    return readers == 1


def _of_any_label(features: FeatureSettings) -> FeatureSettings:
    tokens, cls = features.reads
    return replace(features, use="", tokens=tokens, cls=cls)


def _precision(study: StudyBase) -> dict[str, Any]:
    """The precision of frozen passes as a field of rows, which are of float32 where they do not say."""
    return {} if study.precision == "fp32" else {"precision": study.precision}


def run(of: Task) -> None:
    """Open what the task reads, and measure."""
    settings = of.settings
    record, section = settings.record, settings.section
    labels = {role: open_split(of, record.label, split) for role, split in record.splits(section).items()}
    inputs = {ask.role: open_features(of, ask.role) for ask in record.features(section)}
    backbone: Backbone | None = None
    if settings.network:
        precision = settings.context.get("precision", "fp32")
        backbone = open_backbone(settings.backbone, of.inputs.get("weights"), of.device, precision)
    left_out = _left_out(record, section, list(labels.values())[-1], inputs)
    lie = label_orientation(list(labels.values())[-1])
    accepted = accepted_checks(of.accepted, settings.context["dataset"])
    context = {
        **settings.context,
        **({"left_out": left_out} if left_out else {}),
        **({"label_orientation": lie} if lie else {}),
        **({"accepted": accepted} if accepted else {}),
    }
    parts = _parts(inputs, backbone, settings.study.blocks)
    if of.parts.helps and len(parts) > 1:
        return  # levels of several grids are measured one after another
    folders: dict[Path, int] = {}
    for features_of, network, blocks in parts:
        folder = of.out if len(parts) == 1 else of.out / f"blocks{blocks[0]}-{blocks[-1]}"
        of_rows: Any = list(features_of.values())[-1] if features_of else network
        folders[folder] = of_rows.patch_size
        multiscale = settings.study.multiscale if len(parts) == 1 else None
        folder.mkdir(parents=True, exist_ok=True)
        record.evaluate(
            TaskInputs(
                section,
                labels,
                features_of,
                network,
                folder,
                {**context, "weights": of_rows.weights_hash, "depth": of_rows.depth},
                blocks=blocks,
                facets=settings.facets if network is None else network.read_at(settings.facets),
                norms=settings.norms,
                multiscale=quarters(of_rows.depth) if multiscale == "quarters" else multiscale,
                seed=settings.study.seed,
                device=of.device,
                workers=of.workers,
                floor=of.inputs.get("floor") if len(parts) == 1 else None,
                parts=of.parts if len(parts) == 1 else ALONE,
            )
        )
    if len(parts) > 1:
        join_parts(of.out, folders)


def _left_out(record: EvaluationTask, section: Any, scored: Any, inputs: Mapping[str, FeatureSet]) -> int:
    """Number of images of the scored split that are not measured: broken ones, and ones smaller than a patch."""
    split = record.scored_split(section)
    read = [len(inputs[ask.role].ids) for ask in record.features(section) if ask.split == split]
    return int(scored.left_out) + (len(scored.ids) - min(read) if read else 0)


def _parts(
    inputs: Mapping[str, FeatureSet], backbone: Backbone | None, blocks: Sequence[int] | str
) -> list[tuple[dict[str, FeatureSet], Backbone | None, Sequence[int] | str]]:
    """Features, network and blocks, once for each group of blocks that share grid and width.

    A network whose levels have grids of their own is measured level by level; blocks that are read together
    (multiscale) would need one grid, and are left out.
    """
    networks: tuple[Backbone | None, ...] = (None,) if backbone is None else backbone.parts
    by_role = {role: features.of_equal_grids() for role, features in inputs.items()}
    count = max([len(networks), *(len(split) for split in by_role.values())])
    if count == 1:
        return [(dict(inputs), backbone, blocks)]
    parts: list[tuple[dict[str, FeatureSet], Backbone | None, Sequence[int] | str]] = []
    for network in networks if backbone is not None else [None] * count:
        features_of = {role: split[len(parts)] for role, split in by_role.items()}
        numbers = next(iter(features_of.values())).blocks if features_of else getattr(network, "numbers", ())
        chosen = [number for number in numbers if isinstance(blocks, str) or number in blocks]
        if chosen:
            parts.append((features_of, network, chosen))
    return parts


def check(record: EvaluationTask, study: StudyBase, variants: tuple[Variant, ...]) -> Iterator[Problem]:
    """Images must be whole patches, no split fitted and scored, and what the task itself asks for."""
    section: Any = study.section(record.section)
    if not section.datasets:
        return
    place = f"evaluate.{record.name}"
    for variant in variants:
        sizes = record.sizes(in_whole_patches(record, section, variant))
        yield from not_multiples({f"{place}.{key}": size for key, size in sizes.items()}, [variant])
    scored = record.scored_split(section)
    for role, split in record.fitted_splits(section).items():
        if split == scored:
            key = f"{role}_split" if hasattr(section, f"{role}_split") else "datasets"
            yield (
                f"{place}.{key}",
                f"{split!r} is scored, too: what is fitted must not have seen the images it is scored on",
            )
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
