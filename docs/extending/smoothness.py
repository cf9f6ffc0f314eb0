"""The stage ``smoothness``: the mean cosine of a patch's feature and its right neighbour's, for every block."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from dinoskip.config import Config
from dinoskip.pipeline.fields import Names
from dinoskip.pipeline.stage import Command, Stage, StudyNodes, Task, not_multiples
from dinoskip.pipeline.stages import features
from dinoskip.results import EvalResult, write_rows


class SmoothnessSection(Config):
    """How alike neighbouring patches are."""

    datasets: Names = ()
    split: str = "val"
    size: int = Field(224, ge=16, description="pixels")


def add_nodes(nodes: StudyNodes) -> None:
    """A node for every network and data set, on the features of the split."""
    section = nodes.section(SmoothnessSection)
    square = {"facet": "out", "transform": {"mode": "square", "size": section.size}}
    for model in nodes.models:
        variant = model.variant.name
        for name in section.datasets:
            store = features.of_split(nodes, model, "segmentation", name, section.split, square, str(section.size))
            known = {**nodes.context(model.variant, model.epoch), "dataset": name, "split": section.split}
            nodes.add(STAGE, f"{model.place}/{name}", {"context": known}, inputs={"store": store}, variant=variant)


def run(task: Task) -> None:
    """Write a row for every block."""
    from dinoskip.pipeline.inputs import open_store, row_context  # torch

    store, rows = open_store(task, "store"), []
    known = row_context(task, store)
    for block in store.blocks:
        maps = np.stack([store.tokens(block, i).reshape(*store.grid(i), -1) for i in range(len(store))])
        maps /= np.linalg.norm(maps, axis=-1, keepdims=True)  # (n, h, w, C)
        value = (maps[:, :, 1:] * maps[:, :, :-1]).sum(-1).mean()
        rows.append(EvalResult("cosine", float(value), STAGE.name, str(block), n=len(store), **known))
    write_rows(task.out / "rows.json", rows)


STAGE = Stage(
    "smoothness",
    run,
    add_nodes,
    SmoothnessSection,
    place="evaluate.smoothness",
    use="segmentation",
    measures="smoothness",
    check=lambda study, of: not_multiples({"evaluate.smoothness.size": study.section(SmoothnessSection).size}, of),
    command=Command("say how alike neighbouring patches are", "evaluate.smoothness.size=448"),
)
