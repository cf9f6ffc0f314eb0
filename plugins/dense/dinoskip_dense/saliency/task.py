"""The task ``saliency``: the object of every image as a mask, every block, scored."""

from __future__ import annotations

from pydantic import Field

from dinoskip.io.parts import IMAGES
from dinoskip.settings.fields import READ_AT, Facets, Names
from dinoskip.settings.tasks import EvaluationTask, FeatureRequest, TaskMetric
from dinoskip_dense import saliency
from dinoskip_dense.saliency.config import SaliencyConfig
from eval.tokencut.memory import peak_bytes


class SaliencySection(SaliencyConfig):
    """Saliency (docs/parts.md): the object of an image as a mask, and the bilateral solver after it."""

    datasets: Names = Field((), description="keys of data, with masks; whatever is neither 0 nor 255 is the object")
    split: str = Field("test", description="whose images are cut; scenes and VOC have val")
    facet: Facets = Field(("key",), description=READ_AT)


def features(section: SaliencySection) -> tuple[FeatureRequest, ...]:
    """Images whose sides are rounded to whole patches."""
    rounded, once = {"mode": "rounded", "resample": "lanczos"}, section.positions == "keep"
    return (FeatureRequest("store", section.split, rounded, in_windows=True, streamed=once),)


TASK = EvaluationTask(
    name="saliency",
    order=80,
    measures="saliency",
    help="find the object of every image as a mask, with every block",
    example="evaluate.saliency.solver=true",
    section=SaliencySection,
    label="segmentation",
    data_kind="ecssd",
    splits=lambda section: {"store": section.split},
    features=features,
    reads_images=lambda _: True,
    needs_network=lambda section: section.positions == "insid3",
    evaluate=lambda given: saliency.evaluate(given),
    headline=TaskMetric("maxF", order=4),
    baselines=("full image", "centre box"),
    pictures="maps",
    hub="image-segmentation",
    pairwise=True,
    memory=lambda _, tokens, channels: peak_bytes(tokens, channels),
    part=IMAGES,
    version=3,
    resumes=True,
    not_in_key=("datasets", "split", "facet"),
)
