"""The stage ``gallery``: the page of models × blocks × images, and contact sheets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from dinoskip.config import settings_for_key
from dinoskip.data.sets.kind import WithDepth, WithNormals
from dinoskip.pipeline.fields import Name
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
from dinoskip.pipeline.stages.correspondence import CorrespondenceSection
from dinoskip.pipeline.stages.depth import DepthSection
from dinoskip.pipeline.stages.normals import NormalsSection
from dinoskip.pipeline.stages.probe import ProbeSection
from dinoskip.pipeline.stages.tokencut import TokenCutSection
from dinoskip.pipeline.stages.video import VideoSection
from visualize.gallery.config import GalleryConfig

if TYPE_CHECKING:
    from dinoskip.pipeline.sections import StudyBase
    from dinoskip.pipeline.variants import Variant


class GallerySection(GalleryConfig):
    """The gallery: the first images of a data set's validation split, every model (of several seeds the first), every
    block."""

    dataset: Name | None = Field(None, description="default: the first probed data set")
    epochs: tuple[Annotated[int, Field(ge=0)], ...] = Field((), description="of evaluate.epochs; default: the last")


STUDY_KEYS = {"dataset", "epochs"}
SURFACES: Mapping[str, type[DepthSection | NormalsSection]] = MappingProxyType(
    {"depth": DepthSection, "normals": NormalsSection}
)
"""Stages that leave maps of images for the gallery, by layer."""


def check(study: StudyBase, variants: tuple[Variant, ...]) -> Iterator[Problem]:
    """Blocks, sizes and epochs must be there."""
    section, probe = study.section(GallerySection), study.section(ProbeSection)
    yield from beyond_depth({"gallery.block": (section.block or 1,)}, variants)
    size = section.size or (probe.size if probe.live else None)
    yield from not_multiples({"gallery.size": size}, variants)
    from dinoskip.pipeline.stages.weights import evaluated_epochs  # torch

    evaluated = evaluated_epochs(study)
    for epoch in section.epochs:
        if epoch not in evaluated:
            yield "gallery.epochs", f"epoch {epoch} is not evaluated: add it to evaluate.epochs"
            return


def _contents(config: Any, split: str) -> tuple[Content, ...]:
    """What the gallery reads of a data set: images, and what can be drawn on them."""
    from dinoskip.data import sets as datasets  # torch

    if datasets.has_masks(config):
        masks = (("images", "segmentation", split), ("targets", "segmentation", split))
        return (*masks, ("annotations", split))
    if datasets.has_boxes(config):
        return (("images", "detection", split), ("targets", "detection", split))
    if datasets.has_depth(config) or datasets.has_normals(config):
        of_depth = (("targets", "depth", split),) if datasets.has_depth(config) else ()
        of_normals = (("targets", "normals", split),) if datasets.has_normals(config) else ()
        return (("images", "pretraining", split), *of_depth, *of_normals)
    return (("images", "pretraining", split),)


def _shown_split(study: StudyBase, name: str) -> str:
    """The split of a data set that is shown: the one that is scored."""
    config = study.data[name]
    if isinstance(config, WithDepth):
        return study.section(DepthSection).val_split
    if isinstance(config, WithNormals):
        return study.section(NormalsSection).val_split
    return study.section(ProbeSection).val_split


def _beside(study: StudyBase, name: str) -> dict[str, str]:
    """Data sets whose depth or normals are shown beside the gallery's own, by layer: the first of each."""
    measured = {layer: study.section(section).datasets for layer, section in SURFACES.items()}
    return {layer: names[0] for layer, names in measured.items() if names and name not in names}


def _with_surfaces(nodes: StudyNodes, shown: DataInputs, layer: str, name: str) -> DataInputs:
    """``shown``, and the images and true maps of another data set."""
    split = nodes.section(SURFACES[layer]).val_split
    more = data.of_dataset(nodes, name, split, ("images", "pretraining", split), ("targets", layer, split))
    surfaces = {**shown.settings.get("surfaces", {}), layer: more.settings["dataset"]}
    return DataInputs(
        {**shown.settings, "surfaces": surfaces},
        {**shown.inputs, **{f"data {layer}": node for node in more.inputs.values()}},
        {**shown.runtime, f"config {layer}": more.runtime["config"]},
        {**shown.outside, **more.outside},
    )


def add_nodes(nodes: StudyNodes) -> None:
    """One node for the whole study, if there is a data set to show."""
    study, section, probe = nodes.study, nodes.section(GallerySection), nodes.section(ProbeSection)
    discovery = nodes.section(TokenCutSection)
    name = section.dataset or next(iter(probe.datasets), None)
    if name is None:
        return
    from dinoskip.pipeline.stages.weights import evaluated_epochs  # torch

    last = max(evaluated_epochs(study), default=0)
    epochs = section.epochs or (last,)
    beside = _beside(study, name)
    inputs: dict[str, str] = {}
    models: list[dict[str, Any]] = []
    outside: dict[str, tuple[Any, ...]] = {}
    seeds: dict[str, str] = {}  # the first of each network
    for model in nodes.models:
        variant = model.variant.name
        first = seeds.setdefault(model.variant.family or variant, variant)
        if variant != first or (not model.spec and model.epoch not in epochs):
            continue
        label = f"{variant} ep{model.epoch}" if len(epochs) > 1 and not model.spec else variant
        models.append({"label": label, "variant": variant, "epoch": model.epoch, **model.spec})
        if model.spec:
            outside[f"backbone {model.spec['backbone']}"] = ("backbone", model.spec["backbone"])
        inputs |= {f"{role}:{label}": node for role, node in model.inputs.items()}
        if (node := f"probe/{model.place}/{name}") in nodes.nodes:
            inputs[f"probe:{label}"] = node
        drawn_by = {stage: f"{stage}/{model.place}/{name}" for stage in ("cluster", "saliency", "objects")}
        inputs |= {f"{stage}:{label}": node for stage, node in drawn_by.items() if node in nodes.nodes}
        surfaces = {f"{layer}:{label}": f"{layer}/{model.place}/{beside.get(layer, name)}" for layer in SURFACES}
        inputs |= {role: node for role, node in surfaces.items() if node in nodes.nodes}
        strips = {
            "video": nodes.section(VideoSection).datasets[:1],
            "correspondence": nodes.section(CorrespondenceSection).datasets[:1],
        }
        for stage, names in strips.items():
            inputs |= {f"{stage} strips:{label}": f"{stage}/{model.place}/{one}" for one in names}
        inputs |= {f"tokencut {one}:{label}": f"tokencut/{model.place}/{one}" for one in discovery.datasets}
    drawn = settings_for_key(section, without=STUDY_KEYS)
    settings = {
        "gallery": {**drawn, "size": section.size or probe.size, "dataset": name},
        "title": f"{study.name}, block by block",
        "models": models,
        "norm": study.evaluate.norm[0],
        "read": probe.facet[0],
        "facet": discovery.facet[0],
        "seed": study.seed,
        "blocks": study.evaluate.block_list,
    }
    split = _shown_split(study, name)
    shown = data.of_dataset(nodes, name, split, *_contents(study.data[name], split))
    for layer, one in beside.items():
        shown = _with_surfaces(nodes, shown, layer, one)
    nodes.add(STAGE, "", settings, inputs=inputs, data=shown, outside=outside)


def run(task: Task) -> None:
    """Write the page, contact sheets of each model's blocks and of all models at one block, and ``roughness.json``."""
    from dinoskip.pipeline.gallery_columns import write_gallery  # torch

    write_gallery(task)


STAGE = Stage(
    "gallery",
    run,
    add_nodes,
    GallerySection,
    place="gallery",
    measures="the gallery",
    check=check,
    version=10,
    command=Command(
        "make a page of images × blocks × backbones, of any folder of images", "gallery.first=40", kind="images"
    ),
)
