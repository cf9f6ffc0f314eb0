"""The task ``probe``: all blocks × norms × learning rates in one stacked fit, of stores or of live images."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from pydantic import Field

from dinoskip.fields import READ_AT, Facets, Names
from dinoskip.tasks import EvaluationTask, FeatureRequest, TaskInputs, TaskMetric, TaskOption
from eval import probe
from eval.probe.config import PROTOCOLS, ProbeConfig

if TYPE_CHECKING:
    from dinoskip.results import EvalResult


class ProbeSection(ProbeConfig):
    """Linear probes on frozen features (docs/protocols.md): a protocol, and settings of it that are changed."""

    datasets: Names = Field((), description="keys of data, with masks")
    train_split: str = Field("train", description="whose images the heads are fitted on")
    val_split: str = Field("val", description="whose images are reported")
    facet: Facets = Field(("out",), description=READ_AT)


def features(section: ProbeSection) -> tuple[FeatureRequest, ...]:
    """Square images of both splits; none where images are augmented as they are needed."""
    square = {"mode": "square", "size": section.size}
    stored = (FeatureRequest("train", section.train_split, square), FeatureRequest("val", section.val_split, square))
    return () if section.live else stored


def evaluate(given: TaskInputs) -> None:
    """Fit and score."""
    about: dict[str, Any] = {"seed": given.seed, "multiscale": given.multiscale, "norms": given.norms}
    train, val = given.labels["train"], given.labels["val"]
    if given.settings.live:
        probe.evaluate_live(
            given.backbone, train, val, given.blocks, given.out, given.settings, given.context,
            facets=given.facets, workers=given.workers, **about,
        )  # fmt: skip
        return
    stores = given.features["train"], given.features["val"]
    probe.evaluate(
        *stores, train, val, given.out, given.settings, given.context,
        backbone=given.backbone, device=given.device, **about,
    )  # fmt: skip


def as_published(row: EvalResult) -> int:
    """The protocol ``paper`` and the norm ``final``."""
    return bool(re.match(r"paper\b", row.protocol)) + (row.norm == "final")


TASK = EvaluationTask(
    name="probe",
    measures="linear segmentation probes",
    help="fit linear segmentation probes on every block of a backbone",
    example="evaluate.probe.size=448",
    section=ProbeSection,
    label="segmentation",
    splits=lambda section: {"train": section.train_split, "val": section.val_split},
    features=features,
    study_settings=("seed", "multiscale", "blocks", "norms"),
    sizes=lambda section: {} if section.live else {"size": section.size},
    evaluate=evaluate,
    headline=TaskMetric("mIoU", order=0),
    baselines=("majority class",),
    look={"protocol": "fast", "size": 224},
    pictures="heads",
    hub="image-segmentation",
    version=6,
    as_published=as_published,
    options=(
        TaskOption(
            "--protocol", "NAME", "evaluate.probe.protocol={}",
            f"{', '.join(PROTOCOLS)} (docs/protocols.md; default: paper); evaluate.probe.KEY=value "
            "changes one of its settings, dinoskip settings evaluate.probe lists them",
        ),
        TaskOption(
            "--live", None, "evaluate.probe.live=true",
            "augmented images through the backbone every step, instead of features kept on disk (dinov2, dinov3 "
            "and leopart always do)",
        ),
        TaskOption(
            "--norm", "NORM", "evaluate.norm=[{}]",
            "of features: none, final, layer, or several with commas, fitted together (default: final)",
        ),
        TaskOption(
            "--seeds", "N", "evaluate.probe.seeds={}",
            "fit N times; rows of each and of their mean ± standard deviation (default: 1)",
        ),
    ),
)  # fmt: skip
