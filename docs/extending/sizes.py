"""The stage ``sizes``: how large every variant is, as ``sizes.json``."""

from __future__ import annotations

from typing import Literal

from dinoskip.config import Config, RawConfig, settings_for_key, validate
from dinoskip.files import write_json
from dinoskip.init.build import build_model
from dinoskip.init.config import ModelConfig
from dinoskip.pipeline.stage import Stage, StudyNodes, Task


class SizesSection(Config):
    """How large every variant is."""

    unit: Literal["parameters", "bytes"] = "parameters"


def add_nodes(nodes: StudyNodes) -> None:
    """One node for the whole study."""
    models = {variant.name: settings_for_key(variant.model) for variant in nodes.variants if variant.model is not None}
    nodes.add(STAGE, "", {"models": models, "sizes": settings_for_key(nodes.section(SizesSection))})


def run(task: Task) -> None:
    """Write ``sizes.json``: a number for each variant."""
    section = validate(SizesSection, RawConfig(dict(task.settings["sizes"])))
    sizes = {}
    for name, settings in task.settings["models"].items():
        parameters = build_model(validate(ModelConfig, RawConfig(dict(settings))), seed=0).parameters()
        sizes[name] = sum(one.numel() if section.unit == "parameters" else one.nbytes for one in parameters)
    write_json(task.out / "sizes.json", sizes)


STAGE = Stage("sizes", run, add_nodes, SizesSection, place="sizes")
