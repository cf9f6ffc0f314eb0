"""The stage ``probe``: all blocks × norms × learning rates in one stacked fit, of stores or of live images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import Field

from dinoskip.config import RawConfig, settings_for_key, validate
from dinoskip.pipeline.fields import READ_AT, Facets, Names
from dinoskip.pipeline.live_nodes import facet_settings, facets_of
from dinoskip.pipeline.stage import Command, Problem, Stage, StudyNodes, Task, not_multiples
from dinoskip.pipeline.stages import data, features
from dinoskip.read_points import usual_norm
from eval import probe
from eval.probe.config import PROTOCOLS, ProbeConfig

if TYPE_CHECKING:
    from dinoskip.pipeline.sections import StudyBase
    from dinoskip.pipeline.variants import Variant


class ProbeSection(ProbeConfig):
    """Linear probes on frozen features (docs/protocols.md): a protocol, and settings of it that are changed."""

    datasets: Names = Field((), description="keys of data, with masks")
    train_split: str = Field("train", description="whose images the heads are fitted on")
    val_split: str = Field("val", description="whose images are reported")
    facet: Facets = Field(("out",), description=READ_AT)


def check(study: StudyBase, variants: tuple[Variant, ...]) -> Iterator[Problem]:
    """Square images must be whole patches."""
    section = study.section(ProbeSection)
    unless = not section.datasets or section.live
    yield from not_multiples({"evaluate.probe.size": section.size}, variants, unless=unless)


def add_nodes(nodes: StudyNodes) -> None:
    """A node for every network and data set; several norms are made of one store, when it is read, by the network."""
    section, evaluate = nodes.section(ProbeSection), nodes.study.evaluate
    several, facets = len(evaluate.norm) > 1, features.Facets(section.facet)
    square: dict[str, Any] = {"facet": facets.exported, "transform": {"mode": "square", "size": section.size}}
    if several:
        square["norm"] = "none" if len(facets.names) == 1 else ["none"] * len(facets.names)
    splits = {"train": section.train_split, "val": section.val_split}
    whole = several or section.live
    for model in nodes.models:
        for name in section.datasets:
            hashes = [("targets", "segmentation", split) for split in splits.values()]
            inputs: dict[str, str] = {}
            if section.live:
                hashes += [("images", "segmentation", split) for split in splits.values()]
            else:
                inputs = {
                    role: features.of_split(nodes, model, "segmentation", name, split, square, facets.suffix)
                    for role, split in splits.items()
                }
            for suffix, more, norms in _read(nodes, section):
                settings = {
                    "probe": settings_for_key(section, without={"datasets", "facet"}),
                    "seed": nodes.study.seed,
                    "context": {**nodes.context(model.variant, model.epoch), "dataset": name},
                    "multiscale": nodes.multiscale(model.variant),
                    "blocks": evaluate.block_list,
                    "norms": list(dict.fromkeys(norms)),
                    **more,
                }
                nodes.add(
                    STAGE,
                    f"{model.place}/{name}{suffix}",
                    {**settings, **(model.spec if whole else {})},
                    inputs={**inputs, **(model.inputs if whole else {})},
                    data=data.of_dataset(nodes, name, section.val_split, *hashes),
                    outside=model.outside if whole else {},
                    variant=model.variant.name,
                )


def _read(nodes: StudyNodes, section: ProbeSection) -> list[tuple[str, Mapping[str, Any], Sequence[str]]]:
    """What is added to a node's name, its settings of what is read, and its norms."""
    norms = nodes.study.evaluate.norm
    if section.live:
        return [(suffix, more, norms) for suffix, more in facet_settings(nodes, section.facet).items()]
    return [
        (suffix, read, [usual_norm(facet, norm) for norm in norms])
        for facet, suffix, read in features.Facets(section.facet).readers()
    ]


def run(task: Task) -> None:
    """Fit and score."""
    from dinoskip.pipeline.inputs import multiscale_blocks, open_backbone, open_split, open_store, row_context  # torch

    settings = task.settings
    section = validate(ProbeSection, RawConfig(dict(settings["probe"])))
    train_set, val_set = (open_split(task, "segmentation", part) for part in (section.train_split, section.val_split))
    weights = task.inputs.get("weights")
    backbone = open_backbone(settings, weights, task.device) if weights or "backbone" in settings else None
    fitting = {"seed": settings["seed"], "norms": settings["norms"]}
    if section.live:
        assert backbone is not None
        probe.evaluate_live(
            backbone, train_set, val_set, settings["blocks"], task.out, section, row_context(task, backbone),
            multiscale=multiscale_blocks(task, backbone.depth), workers=task.workers,
            facets=facets_of(settings), **fitting,
        )  # fmt: skip
        return
    train, val = open_store(task, "train"), open_store(task, "val")
    probe.evaluate(
        train, val, train_set, val_set, task.out, section, row_context(task, val),
        multiscale=multiscale_blocks(task, val.depth), backbone=backbone, device=task.device, **fitting,
    )  # fmt: skip


STAGE = Stage(
    "probe",
    run,
    add_nodes,
    ProbeSection,
    place="evaluate.probe",
    use="segmentation",
    measures="linear segmentation probes",
    check=check,
    version=6,
    command=Command(
        "fit linear segmentation probes on every block of a backbone",
        "evaluate.probe.size=448",
        options=(
            (
                "--protocol", "NAME", "evaluate.probe.protocol={}",
                f"{', '.join(PROTOCOLS)} (docs/protocols.md; default: paper); evaluate.probe.KEY=value "
                "changes one of its settings, dinoskip settings evaluate.probe lists them",
            ),
            (
                "--live", None, "evaluate.probe.live=true",
                "augmented images through the backbone every step, instead of features kept on disk (dinov2, dinov3 "
                "and leopart always do)",
            ),
            (
                "--norm", "NORM", "evaluate.norm=[{}]",
                "of features: none, final, layer, or several with commas, fitted together (default: final)",
            ),
            (
                "--seeds", "N", "evaluate.probe.seeds={}",
                "fit N times; rows of each and of their mean ± standard deviation (default: 1)",
            ),
        ),
    ),
)  # fmt: skip
