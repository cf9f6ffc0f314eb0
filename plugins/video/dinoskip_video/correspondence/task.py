"""The task ``correspondence``: keypoints found in another image by the features of every block; PCK."""

from __future__ import annotations

from pydantic import Field

from dinoskip.settings.fields import READ_AT, Facets, Names
from dinoskip.settings.tasks import EvaluationTask, StripPictures, TaskMetric
from dinoskip_video import correspondence
from dinoskip_video.correspondence.config import CorrespondenceConfig
from eval.protocols import protocol_option


class CorrespondenceSection(CorrespondenceConfig):
    """Keypoints found in another image by the most similar feature (docs/correspondence.md): protocol, resolution."""

    datasets: Names = Field((), description="keys of data, with pairs")
    split: str = Field("test", description="whose pairs are reported")
    facet: Facets = Field(("key",), description=READ_AT)


TASK = EvaluationTask(
    name="correspondence",
    order=120,
    measures="semantic correspondence",
    help="find the keypoints of an object in other images, with every block",
    example="evaluate.correspondence.facet=[key,out]",
    section=CorrespondenceSection,
    label="correspondence",
    data_kind="spair71k",
    splits=lambda section: {"scored": section.split},
    study_settings=("seed", "multiscale", "blocks"),
    norm_of_facets=True,
    sizes=lambda section: {"size": section.size},
    evaluate=lambda given: correspondence.evaluate(given),
    headline=TaskMetric("PCK@0.1 per image", order=7),
    baselines=("same place",),
    look={"size": 224},
    pictures=StripPictures("pairs", "pair.jpg"),
    part=680,  # pairs of a category, which share images: SPair-71k has 12,234 of 18; of images fewer, and no parts
    version=3,
    not_in_key=("datasets", "split", "facet"),
    options=(protocol_option("correspondence", CorrespondenceSection, "docs/correspondence.md"),),
)
