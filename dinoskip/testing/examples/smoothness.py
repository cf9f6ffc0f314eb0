"""The task ``smoothness``: the mean cosine of a patch's feature and its right neighbour's, at every block."""

from __future__ import annotations

from pydantic import Field

from dinoskip.results.rows import EvalResult, write_rows
from dinoskip.settings.config import Config
from dinoskip.settings.fields import Names
from dinoskip.settings.tasks import EvaluationTask, FeatureRequest, TaskInputs, TaskMetric


class SmoothnessSection(Config):
    """Similarity of the features of neighbouring patches."""

    datasets: Names = Field((), description="keys of data, with masks")
    split: str = "val"
    size: int = Field(224, ge=16, description="pixels")


def features(section: SmoothnessSection) -> tuple[FeatureRequest, ...]:
    """Square images of the split."""
    return (FeatureRequest("val", section.split, {"mode": "square", "size": section.size}),)


def evaluate(given: TaskInputs) -> None:
    """Write a row for every block, and that of features that have nothing to do with one another."""
    import numpy as np  # records import nothing heavy

    store, rows = given.features["val"], []
    for block in store.blocks:
        maps = np.stack([store.tokens(block, i).reshape(*store.grid(i), -1) for i in range(len(store))])
        maps /= np.linalg.norm(maps, axis=-1, keepdims=True)  # (n, h, w, C)
        percent = 100 * (maps[:, :, 1:] * maps[:, :, :-1]).sum(-1).mean()
        row = EvalResult("cosine", float(percent), TASK.name, str(block), split=given.settings.split, n=len(store),
                         **given.context)  # fmt: skip
        rows.append(row)
    write_rows(given.out / "rows.json", [*rows, rows[0].baseline("unrelated patches", 0.0)])


TASK = EvaluationTask(
    name="smoothness",
    measures="smoothness",
    help="say how alike neighbouring patches are",
    example="evaluate.smoothness.size=448",
    section=SmoothnessSection,
    label="segmentation",
    splits=lambda section: {"val": section.split},
    features=features,
    sizes=lambda section: {"size": section.size},
    evaluate=evaluate,
    headline=TaskMetric("cosine", "cosine of neighbours", range=(-100.0, 100.0)),
    baselines=("unrelated patches",),
)
