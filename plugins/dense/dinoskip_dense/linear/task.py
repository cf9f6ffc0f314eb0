"""The task ``linear``: linear classification on every block, all inputs and learning rates in one stacked fit."""

from __future__ import annotations

from pydantic import Field

from dinoskip.settings.fields import READ_AT, Facets, Names
from dinoskip.settings.tasks import EvaluationTask, TaskMetric
from dinoskip_dense import linear
from dinoskip_dense.linear.config import LinearConfig
from eval.protocols import protocol_option


class LinearSection(LinearConfig):
    """Linear classification of images (docs/heads.md): a protocol, and settings of it that are changed."""

    datasets: Names = Field((), description="keys of data, with classes")
    train_split: str = Field("train", description="whose images the heads are fitted on")
    val_split: str = Field("val", description="whose images are reported")
    facet: Facets = Field(("out",), description=READ_AT)


TASK = EvaluationTask(
    name="linear",
    order=70,
    measures="linear classification",
    help="fit linear classifiers on every block of a backbone",
    example="evaluate.linear.epochs=10",
    section=LinearSection,
    label="classes",
    data_kind="folder",
    splits=lambda section: {"train": section.train_split, "val": section.val_split},
    study_settings=("seed", "multiscale", "blocks"),
    sizes=lambda section: {"size": section.size},
    evaluate=lambda given: linear.evaluate(given),
    headline=TaskMetric("top1", "top-1", order=3),
    spoken="linear",
    baselines=("majority class", "chance"),
    hub="image-classification",
    options=(protocol_option("linear", LinearSection, "docs/heads.md"),),
    version=2,
)
