"""The task ``tokencut``: one box an image, block and method, and CorLoc."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from dinoskip.io.parts import IMAGES
from dinoskip.settings.cut_protocols import CutProtocol
from dinoskip.settings.fields import READ_AT, Facets, Names
from dinoskip.settings.tasks import EvaluationTask, FeatureRequest, PixelFloor, TaskMetric
from eval import tokencut
from eval.tokencut.config import TokenCutConfig
from eval.tokencut.memory import peak_bytes

if TYPE_CHECKING:
    from dinoskip.results.rows import EvalResult


class TokenCutSection(TokenCutConfig):
    """Object discovery (docs/tokencut.md): thresholds, LOST beside it, pictures."""

    datasets: Names = Field((), description="keys of data, with boxes")
    split: str = Field("trainval", description="whose images are cut")
    facet: Facets = Field(("key",), description=READ_AT)


def features(section: TokenCutSection) -> tuple[FeatureRequest, ...]:
    """Images of native size; what takes position out of them reads them twice."""
    once = section.positions == "keep"
    return (FeatureRequest("store", section.split, {"mode": "native"}, in_windows=True, streamed=once),)


def as_published(row: EvalResult) -> int:
    """TokenCut with tau 0.2, on keys, as they are."""
    cut = CutProtocol.parse(row.protocol)
    as_is = ("tokencut", 0.2, False, "keep")
    plain = cut is not None and (cut.method, cut.tau, cut.centred, cut.positions) == as_is
    return plain + (row.facet == "key")


TASK = EvaluationTask(
    name="tokencut",
    order=20,
    measures="object discovery",
    help="discover objects in every block by TokenCut (LOST, too)",
    example="evaluate.tokencut.lost_k=100",
    section=TokenCutSection,
    label="detection",
    splits=lambda section: {"store": section.split},
    features=features,
    reads_images=lambda section: section.overlays > 0,
    needs_network=lambda section: section.positions == "insid3" or section.object_dino is not None,
    study_settings=("multiscale",),
    evaluate=lambda given: tokencut.evaluate(given),
    headline=TaskMetric("CorLoc", order=1),
    baselines=("full image", "centre box"),
    floor=PixelFloor(lambda section: section.pixels, lambda given: tokencut.make_floor(given)),
    look={},
    hub="object-detection",
    pairwise=True,
    memory=lambda _, tokens, channels: peak_bytes(tokens, channels),
    disk_per_token=3,  # a float16 of its eigenvector and its mask
    part=IMAGES,
    version=5,
    resumes=True,
    not_in_key=("datasets", "split", "facet"),
    as_published=as_published,
)
