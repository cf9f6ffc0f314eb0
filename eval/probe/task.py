"""The task ``probe``: all blocks × norms × learning rates in one stacked fit, of stores or of live images."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import Field

from dinoskip.runtime.environment import memory_limit
from dinoskip.settings.fields import READ_AT, Facets, Names
from dinoskip.settings.tasks import EvaluationTask, FeatureRequest, PixelFloor, TaskMetric, TaskOption
from eval import probe
from eval.probe.config import ProbeConfig
from eval.protocols import protocol_option

if TYPE_CHECKING:
    from dinoskip.results.rows import EvalResult


LARGEST_CLASSES = 256  # that masks of one byte tell apart


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


def held(section: ProbeSection, reads: Sequence[tuple[int, int, int, int]]) -> int:
    """Tokens of training images in half of the limit, in float32, else as stored, else none; targets in a quarter."""
    if not reads:
        return 0
    images, tokens, channels, blocks = reads[0]
    limit, values = memory_limit(), images * tokens * channels * blocks
    kept = next((size for size in (4 * values, 2 * values) if size <= limit // 2), 0)
    return kept + min(limit // 4, 4 * images * tokens * LARGEST_CLASSES)


def as_published(row: EvalResult) -> int:
    """The protocol ``paper`` and the norm ``final``."""
    return bool(re.match(r"paper\b", row.protocol)) + (row.norm == "final")


TASK = EvaluationTask(
    name="probe",
    order=10,
    measures="linear segmentation probes",
    help="fit linear segmentation probes on every block of a backbone",
    example="evaluate.probe.size=448",
    section=ProbeSection,
    label="segmentation",
    splits=lambda section: {"train": section.train_split, "val": section.val_split},
    features=features,
    study_settings=("seed", "multiscale", "blocks", "norms"),
    sizes=lambda section: {} if section.live else {"size": section.size},
    evaluate=lambda given: probe.evaluate(given),
    headline=TaskMetric("mIoU", order=0),
    baselines=("majority class",),
    floor=PixelFloor(lambda section: section.pixels, lambda given: probe.make_floor(given)),
    look={"protocol": "fast", "size": 224},
    pictures="heads",
    hub="image-segmentation",
    held=held,
    version=7,
    as_published=as_published,
    options=(
        protocol_option(
            "probe", ProbeSection, "docs/protocols.md",
            "; evaluate.probe.KEY=value changes one of its settings, dinoskip settings evaluate.probe lists them",
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
