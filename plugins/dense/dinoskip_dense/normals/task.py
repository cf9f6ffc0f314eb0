"""The task ``normals``: surface normals by linear heads on every block, all learning rates in one stacked fit."""

from __future__ import annotations

from pydantic import Field

from dinoskip.settings.fields import READ_AT, Facets, Names
from dinoskip.settings.tasks import EvaluationTask, SurfacePictures, TaskMetric
from dinoskip_dense import normals
from dinoskip_dense.normals.config import NormalsConfig


class NormalsSection(NormalsConfig):
    """Surface normals by linear heads on frozen features (docs/heads.md)."""

    datasets: Names = Field((), description="keys of data, with surface normals")
    train_split: str = Field("train", description="whose images the heads are fitted on")
    val_split: str = Field("test", description="whose images are reported")
    facet: Facets = Field(("out",), description=READ_AT)


TASK = EvaluationTask(
    name="normals",
    order=60,
    measures="surface normals",
    help="fit linear heads of surface normals on every block of a backbone",
    example="evaluate.normals.epochs=2",
    section=NormalsSection,
    label="normals",
    data_kind="nyu_normals",
    splits=lambda section: {"train": section.train_split, "val": section.val_split},
    study_settings=("seed", "multiscale", "blocks"),
    evaluate=lambda given: normals.evaluate(given),
    headline=TaskMetric("within 11.25", order=9),
    further=(TaskMetric("RMSE angle", unit="°", range=(0.0, 180.0), lower_is_better=True),),
    baselines=("mean normal", "mean normal of each place"),
    look={"epochs": 1, "maps": 8},
    pictures=SurfacePictures(lambda opened, index: opened.read(index).masked),
    hub="depth-estimation",
    version=4,
)
