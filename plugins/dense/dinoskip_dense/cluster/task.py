"""The task ``cluster``: patches clustered without labels at every block, clusters matched to classes."""

from __future__ import annotations

from pydantic import Field

from dinoskip.settings.fields import READ_AT, Facets, Names
from dinoskip.settings.tasks import EvaluationTask, FeatureRequest, TaskMetric
from dinoskip_dense import cluster
from dinoskip_dense.cluster.config import TRAIN_CROP, ClusteringConfig
from eval.protocols import protocol_option


class ClusterSection(ClusteringConfig):
    """Unsupervised segmentation (docs/parts.md): a protocol, and settings of it that are changed."""

    datasets: Names = Field((), description="keys of data, with masks")
    train_split: str = Field("train", description="whose patches are clustered, where the protocol's are of train")
    val_split: str = Field("val", description="whose images are reported")
    facet: Facets = Field(("out",), description=READ_AT)


def sizes(section: ClusterSection) -> dict[str, int | None]:
    """Square images must be whole patches, and the protocol's training crops."""
    crops: dict[str, int | None] = {"sizing": TRAIN_CROP}
    return {"size": section.size, **(crops if section.sizing == "crop" and section.fitted_on == "train" else {})}


def features(section: ClusterSection) -> tuple[FeatureRequest, ...]:
    """The scored images, and those that are clustered where they are others."""
    val = FeatureRequest("val", section.val_split, section.transform("val"))
    if section.fitted_on == "val":
        return (val,)
    transform, once = section.transform("train"), section.passes_once
    return (FeatureRequest("train", section.train_split, transform, in_windows=once, streamed=once), val)


TASK = EvaluationTask(
    name="cluster",
    order=100,
    measures="unsupervised segmentation",
    help="cluster patches without labels at every block and match clusters to classes",
    example="evaluate.cluster.clusters=[21,100]",
    section=ClusterSection,
    label="segmentation",
    splits=lambda section: {"val": section.val_split},
    features=features,
    study_settings=("seed",),
    sizes=sizes,
    evaluate=lambda given: cluster.evaluate(given),
    headline=TaskMetric("mIoU", order=0),
    spoken="cluster",
    baselines=("one cluster",),
    pictures="maps",
    hub="image-segmentation",
    version=4,
    options=(protocol_option("cluster", ClusterSection, "docs/parts.md"),),
)
