"""The stage ``tokencut``: one box an image, block and method, and CorLoc."""

from __future__ import annotations

from pydantic import Field

from dinoskip.config import RawConfig, settings_for_key, validate
from dinoskip.pipeline.fields import READ_AT, Facets, Names
from dinoskip.pipeline.stage import Command, Stage, StudyNodes, Task
from dinoskip.pipeline.stages import data, features
from eval import tokencut
from eval.tokencut.config import TokenCutConfig


class TokenCutSection(TokenCutConfig):
    """Object discovery (docs/tokencut.md): thresholds, LOST beside it, pictures."""

    datasets: Names = Field((), description="keys of data, with boxes")
    split: str = Field("trainval", description="whose images are cut")
    facet: Facets = Field(("key",), description=READ_AT)


STUDY_KEYS = {"datasets", "split", "facet"}


def add_nodes(nodes: StudyNodes) -> None:
    """A node for every network, data set and facet."""
    section = nodes.section(TokenCutSection)
    hashes = [("targets", "detection", section.split)]
    hashes += [("images", "detection", section.split)] if section.overlays else []
    facets = features.Facets(section.facet)
    native = {"facet": facets.exported, "transform": {"mode": "native"}}
    for model in nodes.models:
        for name in section.datasets:
            for facet, suffix, read in facets.readers():
                source = features.source_of(nodes, model, "store", "detection", name, section.split, native, read=facet)
                settings = {
                    "tokencut": settings_for_key(section, without=STUDY_KEYS),
                    "multiscale": nodes.multiscale(model.variant),
                    "context": {**nodes.context(model.variant, model.epoch), "dataset": name},
                }
                nodes.add(
                    STAGE,
                    f"{model.place}/{name}{suffix}",
                    {**settings, **source.settings, **read},
                    inputs=source.inputs,
                    data=data.of_dataset(nodes, name, section.split, *hashes, *source.contents),
                    runtime=source.runtime,
                    outside=source.outside,
                    variant=model.variant.name,
                )


def run(task: Task) -> None:
    """Cut every image at every block."""
    from dinoskip.pipeline.inputs import multiscale_blocks, open_features, open_split, row_context  # torch

    store = open_features(task, "store")
    tokencut.evaluate(
        store,
        open_split(task, "detection"),
        task.out,
        validate(TokenCutConfig, RawConfig(dict(task.settings["tokencut"]))),
        row_context(task, store),
        multiscale=multiscale_blocks(task, store.depth),
        device=task.device,
        workers=task.workers,
    )


STAGE = Stage(
    "tokencut",
    run,
    add_nodes,
    TokenCutSection,
    place="evaluate.tokencut",
    use="detection",
    measures="object discovery",
    version=4,
    resumes=True,
    command=Command("discover objects in every block by TokenCut (LOST, too)", "evaluate.tokencut.lost_k=100"),
)
