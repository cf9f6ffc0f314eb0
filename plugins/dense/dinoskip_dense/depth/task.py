"""The task ``depth``: linear depth heads on every block, all learning rates in one stacked fit."""

from __future__ import annotations

import math

from pydantic import Field

from dinoskip.settings.fields import READ_AT, Facets, Names
from dinoskip.settings.tasks import EvaluationTask, SurfacePictures, TaskMetric
from dinoskip_dense import depth
from dinoskip_dense.depth.config import DepthConfig
from eval.protocols import protocol_option


class DepthSection(DepthConfig):
    """Depth by linear heads on frozen features (docs/heads.md): a protocol, and settings of it that are changed."""

    datasets: Names = Field((), description="keys of data, with depth maps")
    train_split: str = Field("train", description="whose images the heads are fitted on")
    val_split: str = Field("test", description="whose images are reported")
    facet: Facets = Field(("out",), description=READ_AT)


TASK = EvaluationTask(
    name="depth",
    order=50,
    measures="depth",
    help="fit linear depth heads on every block of a backbone",
    example="evaluate.depth.iterations=2000",
    section=DepthSection,
    label="depth",
    data_kind="nyu",
    splits=lambda section: {"train": section.train_split, "val": section.val_split},
    study_settings=("seed", "multiscale", "blocks"),
    evaluate=lambda given: depth.evaluate(given),
    headline=TaskMetric("delta1", order=8),
    further=(
        TaskMetric("RMSE", unit="m", range=(0.0, math.inf), lower_is_better=True),
        *(
            TaskMetric(name, unit="", range=(0.0, math.inf), lower_is_better=True)
            for name in ("AbsRel", "log10", "SILog", "RMSE log", "SqRel")
        ),
    ),
    baselines=("median depth", "mean depth of each place"),
    look={"iterations": 200, "batch_size": 4, "crop": (224, 288), "flip_test": False, "maps": 8},
    pictures=SurfacePictures(lambda opened, index: opened.depth(index)),
    hub="depth-estimation",
    version=3,
    options=(protocol_option("depth", DepthSection, "docs/heads.md"),),
)
