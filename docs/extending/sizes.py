"""The stage ``sizes``: how large every variant is, as ``sizes.json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from dinoskip.init.config import ModelConfig
from dinoskip.io.files import read_json, write_json
from dinoskip.pipeline.graph import NodeSettings
from dinoskip.pipeline.stage import Shown, ShownOf, Stage, StudyNodes, Task
from dinoskip.settings.config import Config
from visualize.tables import DataTable


class SizesSection(Config):
    """Settings of the stage ``sizes``."""

    unit: Literal["parameters", "bytes"] = "parameters"


@dataclass(frozen=True)
class SizesSettings(NodeSettings):
    """The section, and the model of every variant."""

    sizes: SizesSection
    models: Mapping[str, ModelConfig]


def add_nodes(nodes: StudyNodes) -> None:
    """One node for the whole study."""
    models = {variant.name: variant.model for variant in nodes.variants if variant.model is not None}
    nodes.add(STAGE, "", SizesSettings(nodes.study.section(SizesSection), models))


def run(task: Task) -> None:
    """Write ``sizes.json``: a number for each variant."""
    from dinoskip.init.build import build_model  # torch, which commands that print text do without

    settings: SizesSettings = task.settings
    sizes = {}
    for name, model in settings.models.items():
        parameters = build_model(model, seed=0).parameters()
        sizes[name] = sum(
            parameter.numel() if settings.sizes.unit == "parameters" else parameter.nbytes for parameter in parameters
        )
    write_json(task.out / "sizes.json", sizes)


def shows(of: ShownOf) -> Shown:
    """A table in the report."""
    (path,) = of.outputs.values()
    sizes = read_json(path / "sizes.json")
    rows = [[words, sizes[name]] for words, name in of.variants.items() if name in sizes]
    return Shown(tables=[DataTable("Sizes", ["variant", "size"], rows)])


STAGE = Stage("sizes", run, add_nodes, SizesSection, place="sizes", shows=shows)
PARTS = {"stages": {"sizes": STAGE}}
