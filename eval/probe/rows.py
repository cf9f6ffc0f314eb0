"""What a probe leaves behind: result rows, of each seed and of their mean, heads and details."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dinoskip.config import dump
from dinoskip.console import log
from dinoskip.data.segmentation import SegmentationDataset
from dinoskip.files import write_json
from dinoskip.records import RecordedRow, areas_record, write_recorded_rows
from dinoskip.results import EvalResult, best_by_heldout
from eval.baselines import segmentation_baselines
from eval.intervals import miou_interval
from eval.labelled import Key, LabelledTokens
from eval.means import mean_row
from eval.probe.config import ProbeConfig
from eval.probe.fit import ProbeResult
from eval.probe.heads import save_heads


@dataclass(frozen=True)
class ProbedData:
    """What was probed: label maps as read, data sets, the backbone's facet and weights, sizes in words, first seed.

    ``cosines`` are mean cosines between tokens of a validation image, by (norm, block), where they were measured.
    """

    train: LabelledTokens
    val: LabelledTokens
    train_set: SegmentationDataset
    val_set: SegmentationDataset
    facet: str
    weights: str
    train_ids: Sequence[str]
    val_ids: Sequence[str]
    resolution: str
    seed: int
    multiscale: Sequence[int] | None
    cosines: Mapping[Key, float] = field(default_factory=dict)


def publish(
    out: Path,
    fits: Sequence[Sequence[ProbeResult]],
    config: ProbeConfig,
    about: ProbedData,
    context: Mapping[str, Any],
    pixels: Mapping[str, ProbeResult] = MappingProxyType({}),
) -> list[EvalResult]:
    """Write heads, ``probes.json``, ``rows.json`` and ``records.npz`` of one fit a seed into ``out``; return the rows.

    ``heads.safetensors`` are of the first seed, norm and facet, ``heads_NORM.safetensors`` and
    ``heads_FACET_NORM.safetensors`` of the others. With several seeds,
    the rows of their mean come first, with the standard deviation; the rows of a seed carry ``seed N`` in their note.
    ``pixels`` are probes without a network, whose rows are baselines.
    """
    out = Path(out)
    _save(out, fits[0], about)
    details = [_details(result, about.seed + i) for i, results in enumerate(fits) for result in results]
    fitted = {
        "list": about.train_set.list_name,
        "ids": list(about.train_ids) if about.train_set.drawn else "all",
    }
    settings = {name: value for name, value in dump(config).items() if name in ProbeConfig.model_fields}
    settings |= {"seed": about.seed, "multiscale": about.multiscale and list(about.multiscale)}
    write_json(out / "probes.json", {"config": settings, "train": fitted, "probes": details})
    context = {"protocol": f"{config.label}, fitted on {about.train_set.list_name}", **context}
    fitted_rows = [_rows_of_fit(results, about, context) for results in fits]
    recorded = fitted_rows[0]
    if len(fits) > 1:
        recorded = [RecordedRow(mean_row([one.row for one in same])) for same in zip(*fitted_rows, strict=True)]
        for seed, of_seed in enumerate(fitted_rows, about.seed):
            recorded += [
                replace(one, row=replace(one.row, seed=seed, note=f"{one.row.note}, seed {seed}".lstrip(", ")))
                for one in of_seed
            ]
    _log_best([one.row for one in recorded])
    counted = about.train.pixels_per_image(), about.val.pixels_per_image()
    like = recorded[0].row
    recorded += segmentation_baselines(*counted, like)
    recorded += [_baseline(name, result, like) for name, result in pixels.items()]
    return write_recorded_rows(out, about.val_ids, recorded)


def _baseline(name: str, result: ProbeResult, like: EvalResult) -> RecordedRow:
    low, high = miou_interval(result.areas)
    row = like.baseline(name, 100 * result.scores.miou, 100 * low, 100 * high)
    return RecordedRow(row, areas_record(result.areas))


def _log_best(rows: Sequence[EvalResult]) -> None:
    rows = [row for row in rows if row.metric == "mIoU" and not row.note]
    best = max(rows, key=lambda row: np.nan_to_num(row.value, nan=-1))
    log.debug("probe: best is block %s with %s mIoU", best.block, best.shown)
    if (chosen := best_by_heldout(rows)) is not None:
        log.debug("probe: chosen by held-out training images is block %s with %s mIoU", chosen.block, chosen.shown)


def _save(out: Path, results: Sequence[ProbeResult], about: ProbedData) -> None:
    first = results[0].norm
    for norm in dict.fromkeys(result.norm for result in results):
        name = "heads" if norm == first else f"heads_{norm.replace(' ', '_')}"
        heads = [result.head for result in results if result.norm == norm]
        save_heads(out / f"{name}.safetensors", heads, {"classes": about.val_set.class_names, "format": 1})


def _finite(values: Sequence[float] | NDArray[np.float64]) -> list[float | None]:
    return [float(value) if np.isfinite(value) else None for value in values]


def _details(result: ProbeResult, seed: int) -> dict[str, Any]:
    return {
        "block": result.name,
        "norm": result.norm,
        "seed": seed,
        "learning_rates": list(result.learning_rates),
        "weight_decays": [decay for _, decay in result.trials],
        "heldout_miou": _finite(result.heldout),
        "validation_miou": _finite(result.validation),
        "learning_rate": result.learning_rate,
        "best_learning_rate": result.trials[result.best][0],
        "iou": _finite(result.scores.iou),
    }


def _rows_of_fit(results: Sequence[ProbeResult], about: ProbedData, context: Mapping[str, Any]) -> list[RecordedRow]:
    return [
        replace(one, row=one.row.with_context(context))
        for result in results
        for one in _rows(result, miou_interval(result.areas), about)
    ]


def _rows(result: ProbeResult, interval: tuple[float, float], about: ProbedData) -> list[RecordedRow]:
    """Rows of mIoU with its interval and held-out score, mAcc, aAcc, and mIoU of the head best on validation."""
    scores, (low, high) = result.scores, interval
    facet, _, norm = result.norm.rpartition(" ")
    like = EvalResult(
        metric="mIoU",
        value=100 * scores.miou,
        task="probe",
        block=result.name,
        dataset=about.val_set.name,
        split=about.val_set.split,
        n=about.val.count,
        facet=facet or about.facet,
        norm=norm,
        resolution=about.resolution,
        classes=about.val_set.num_classes,
        seed=about.seed,
        weights=about.weights,
    )
    miou = replace(like, low=100 * low, high=100 * high, heldout=100 * result.heldout[result.chosen])
    cosines = [about.cosines[result.norm, block] for block in result.blocks if (result.norm, block) in about.cosines]
    if len(cosines) == 1:
        miou = replace(miou, token_cosine=cosines[0])
    return [
        RecordedRow(miou, areas_record(result.areas)),
        RecordedRow(replace(like, metric="mAcc", value=100 * scores.macc)),
        RecordedRow(replace(like, metric="aAcc", value=100 * scores.aacc)),
        RecordedRow(replace(like, value=100 * result.best_scores.miou, note="best on validation")),
    ]
