"""The stage ``gallery``: the page of models × blocks × images, and contact sheets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from dinoskip.data.sets.labels import DETECTION, LABELS, SEGMENTATION
from dinoskip.pipeline.gallery.settings import GallerySettings, ShownModel
from dinoskip.pipeline.stage import (
    Command,
    Content,
    DataInputs,
    Problem,
    Stage,
    StudyNodes,
    Task,
    beyond_depth,
    not_multiples,
)
from dinoskip.pipeline.stages import data
from dinoskip.pipeline.stages.weights import evaluated_epochs
from dinoskip.pipeline.words import at_epoch, variant_words
from dinoskip.settings.fields import Name
from dinoskip.settings.tasks import EvaluationTask, StripPictures, SurfacePictures, tasks
from dinoskip.settings.tasks import task as task_record
from eval.probe.task import ProbeSection
from eval.tokencut.task import TokenCutSection
from visualize.gallery import layers
from visualize.gallery.config import GalleryConfig

if TYPE_CHECKING:
    from dinoskip.pipeline.sections import StudyBase
    from dinoskip.pipeline.variants import Variant


class GallerySection(GalleryConfig):
    """The gallery: the first images of a data set's validation split, every model (of several seeds the first), every
    block."""

    dataset: Name | None = Field(None, description="default: the first probed data set")
    epochs: tuple[Annotated[int, Field(ge=0)], ...] = Field((), description="of evaluate.epochs; default: the last")


def check(study: StudyBase, variants: tuple[Variant, ...]) -> Iterator[Problem]:
    """Blocks, sizes and epochs must be there."""
    section = study.section(GallerySection)
    yield from beyond_depth({"gallery.block": (section.block or 1,)}, variants)
    yield from not_multiples({"gallery.size": section.size}, variants)

    evaluated = evaluated_epochs(study)
    for epoch in section.epochs:
        if epoch not in evaluated:
            yield "gallery.epochs", f"epoch {epoch} is not evaluated: add it to evaluate.epochs"
            return


def _contents(config: Any, split: str) -> tuple[Content, ...]:
    """Return the contents of a data set that the gallery reads: images, and the labels that can be drawn on them."""
    if SEGMENTATION.given_by(config):
        masks = (("images", "segmentation", split), ("targets", "segmentation", split))
        return (*masks, ("annotations", split))
    if DETECTION.given_by(config):
        return (("images", "detection", split), ("targets", "detection", split))
    return (("images", "pretraining", split), *(("targets", record.label, split) for record in _surfaces(config)))


def _surfaces(config: Any = None) -> list[EvaluationTask]:
    """The tasks that leave maps of images; with a data set those that it has labels for."""
    every = [record for record in tasks() if isinstance(record.pictures, SurfacePictures)]
    return every if config is None else [record for record in every if LABELS[record.label].given_by(config)]


def _shown_split(study: StudyBase, name: str) -> str:
    """The split of a data set that is shown: the one that is scored."""
    config = study.data[name]
    record = next(iter(_surfaces(config)), task_record("probe"))
    return record.scored_split(study.section(record.section))


def _other_sets(study: StudyBase, name: str) -> dict[str, str]:
    """Data sets whose true and predicted maps are shown beside the gallery's own, by layer: the first of each."""
    measured = {record.name: _datasets(study, record) for record in _surfaces()}
    return {layer: names[0] for layer, names in measured.items() if names and name not in names}


def _datasets(study: StudyBase, record: EvaluationTask) -> tuple[str, ...]:
    """The data sets that a task is done on."""
    section: Any = study.section(record.section)
    return tuple(section.datasets)


def _measured(nodes: StudyNodes, place: str, label: str, name: str, other_sets: Mapping[str, str]) -> dict[str, str]:
    """The nodes whose rows and pictures of a network are shown, by role; ``name`` is the gallery's data set.

    Pictures are of that data set, or of the first of those that a task with pictures of its own is done on; rows alone
    are of every data set.
    """
    inputs: dict[str, str] = {}
    for record in tasks():
        names = _datasets(nodes.study, record)
        if isinstance(record.pictures, StripPictures):
            roles = {f"{record.name} strips": dataset for dataset in names[:1]}
        elif record.pictures:
            roles = {record.name: other_sets.get(record.name, name)}
        else:
            roles = {f"{record.name} {dataset}": dataset for dataset in names}
        wanted = {f"{role}:{label}": f"{record.name}/{place}/{dataset}" for role, dataset in roles.items()}
        inputs |= {role: node for role, node in wanted.items() if node in nodes.nodes}
    return inputs


def _with_surfaces(
    nodes: StudyNodes, shown: DataInputs, other_sets: Mapping[str, str]
) -> tuple[DataInputs, dict[str, str]]:
    """``shown``, and the images and true maps of other data sets, by layer; and their splits."""
    surfaces, splits = {}, {}
    for layer, name in other_sets.items():
        record = task_record(layer)
        split = splits[layer] = record.scored_split(nodes.study.section(record.section))
        more = data.of_dataset(nodes, name, split, ("images", "pretraining", split), ("targets", record.label, split))
        surfaces[layer] = more.settings["dataset"]
        shown = replace(
            shown,
            inputs={**shown.inputs, **{f"data {layer}": node for node in more.inputs.values()}},
            runtime={**shown.runtime, f"config {layer}": nodes.study.data[name]},
            outside={**shown.outside, **more.outside},
        )
    return replace(shown, settings=shown.settings | ({"surfaces": surfaces} if surfaces else {})), splits


def add_nodes(nodes: StudyNodes) -> None:
    """One node for the whole study, if there is a data set to show."""
    study, section, probe = nodes.study, nodes.study.section(GallerySection), nodes.study.section(ProbeSection)
    discovery = nodes.study.section(TokenCutSection)
    name = section.dataset or next(iter(probe.datasets), None)
    if name is None:
        return

    last = max(evaluated_epochs(study), default=0)
    epochs = section.epochs or (last,)
    other_sets = _other_sets(study, name)
    inputs: dict[str, str] = {}
    models: list[ShownModel] = []
    outside: dict[str, tuple[Any, ...]] = {}
    seeds: dict[str, str] = {}  # the first of each network
    words = variant_words(nodes.variants)
    for model in nodes.models:
        variant = model.variant.name
        first = seeds.setdefault(model.variant.family or variant, variant)
        spec = model.variant.backbone
        if variant != first or (spec is None and model.epoch not in epochs):
            continue
        label = f"{variant} ep{model.epoch}" if len(epochs) > 1 and spec is None else variant
        called = words[model.variant.family or variant]
        called = called if label == variant else at_epoch(called, model.epoch)
        models.append(ShownModel(label, variant, model.epoch, nodes.blocks(model.variant), spec, called))
        outside |= {f"backbone {spec}": content for content in model.outside.values()}
        inputs |= {f"{role}:{label}": node for role, node in model.inputs.items()}
        inputs |= _measured(nodes, model.place, label, name, other_sets)
    split = _shown_split(study, name)
    shown = data.of_dataset(nodes, name, split, *_contents(study.data[name], split))
    shown, splits = _with_surfaces(nodes, shown, other_sets)
    settings = GallerySettings(
        section.model_copy(update={"dataset": name}),
        split,
        f"{study.name}, block by block",
        models,
        study.evaluate.norm[0],
        probe.facet[0],
        discovery.facet[0],
        discovery,
        study.seed,
        study.evaluate.block_list,
        splits,
        probe.size,
        study.precision,
    )
    nodes.add(STAGE, "", settings, inputs=inputs, data=shown, outside=outside)


def run(task: Task) -> None:
    """Write the page, contact sheets of each model's blocks and of all models at one block, and ``roughness.json``."""
    from dinoskip.pipeline.gallery.columns import write_gallery  # torch

    write_gallery(task)


STAGE = Stage(
    "gallery",
    run,
    add_nodes,
    GallerySection,
    place="gallery",
    measures="the gallery",
    check=check,
    version=layers.version(),
    command=Command("make a page of images × blocks × networks, of any images", "gallery.first=40", kind="images"),
)
