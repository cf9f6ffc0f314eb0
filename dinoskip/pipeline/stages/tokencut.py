"""The stage ``tokencut``: one box an image, block and method, and CorLoc."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from dinoskip.config import RawConfig, as_tuple, no_duplicates, settings_for_key, validate
from dinoskip.pipeline.fields import Names, not_empty
from dinoskip.pipeline.stage import Command, Stage, StudyNodes, Task
from dinoskip.pipeline.stages import data, features
from eval import tokencut
from eval.tokencut.config import TokenCutConfig

Facet = Literal["key", "query", "value", "out"]


class TokenCutSection(TokenCutConfig):
    """Object discovery (docs/tokencut.md): thresholds, LOST beside it, pictures."""

    datasets: Names = Field((), description="keys of data, with boxes")
    split: str = Field("trainval", description="whose images are cut")
    facet: Annotated[
        tuple[Facet, ...], BeforeValidator(as_tuple), AfterValidator(not_empty), AfterValidator(no_duplicates)
    ] = Field(("key",), description="one or several; what is shown is of the first")


STUDY_KEYS = {"datasets", "split", "facet"}


def add_nodes(nodes: StudyNodes) -> None:
    """A node for every network, data set and facet."""
    section = nodes.section(TokenCutSection)
    hashes = [("targets", "detection", section.split)]
    hashes += [("images", "detection", section.split)] if section.overlays else []
    for model in nodes.models:
        for name in section.datasets:
            for facet in section.facet:
                suffix = "" if facet == section.facet[0] else f"-{facet}"
                native = {"facet": facet, "transform": {"mode": "native"}}
                source = features.source_of(nodes, model, "store", "detection", name, section.split, native, suffix)
                settings = {
                    "tokencut": settings_for_key(section, without=STUDY_KEYS),
                    "multiscale": nodes.multiscale(model.variant),
                    "context": {**nodes.context(model.variant, model.epoch), "dataset": name},
                }
                nodes.add(
                    STAGE,
                    f"{model.place}/{name}{suffix}",
                    {**settings, **source.settings},
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
