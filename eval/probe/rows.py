"""Outputs of a probe: result rows of each seed and of their mean, heads and details."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dinoskip.io.files import write_json
from dinoskip.results.records import RecordedRow, write_recorded_rows
from dinoskip.results.rows import ON_VALIDATION, SHOWN, EvalResult
from dinoskip.settings.read_points import ReadAt
from dinoskip.settings.tasks import TaskInputs
from eval.baselines import majority_areas
from eval.labelled import Key, LabelledTokens
from eval.probe.config import ProbeConfig
from eval.probe.fit import ProbeResult, selection_of
from eval.probe.floor import PixelProbe
from eval.probe.heads import save_heads
from eval.rows import log_best, miou_row, row_like, rows_of_seeds, segmentation_rows


def publish(
    given: TaskInputs,
    fits: Sequence[Sequence[ProbeResult]],
    train: LabelledTokens,
    val: LabelledTokens,
    cosines: Mapping[Key, float] = MappingProxyType({}),
    pixels: Mapping[str, PixelProbe] = MappingProxyType({}),
) -> list[EvalResult]:
    """Write heads, ``probes.json``, ``rows.json`` and ``records.npz`` of one fit a seed; return the rows.

    ``train`` and ``val`` have the label maps as read, ``cosines`` the mean cosines between tokens of a validation image
    by (norm, block), where they were measured. ``heads.safetensors`` are of the first seed, norm and facet,
    ``heads_NORM.safetensors`` and ``heads_FACET_NORM.safetensors`` of the others. With several seeds, the rows of their
    mean come first, with the standard deviation; the rows of a seed carry ``seed N`` in their note. ``pixels`` are
    probes without a network, whose rows are baselines.
    """
    config: ProbeConfig = given.settings
    train_set, val_set = given.labels["train"], given.labels["val"]
    read = given.features or given.labels
    _save(given.out, fits[0], val_set.class_names)
    details = [_details(result, given.seed + i) for i, results in enumerate(fits) for result in results]
    fitted = {"list": train_set.list_name, "ids": list(read["train"].ids) if train_set.drawn else "all"}
    about_fit = {"seed": given.seed, "multiscale": given.multiscale and list(given.multiscale)}
    settings = {**config.own_settings, **about_fit}
    write_json(given.out / "probes.json", {"config": settings, "train": fitted, "probes": details})
    about = {"facet": "out", "resolution": config.resolution}
    if given.features:
        store = given.features["val"]
        about = {"facet": store.facet, "resolution": f"{store.transform.label}, scored at label size"}
    protocol = f"{config.label}, fitted on {train_set.list_name}"
    template = row_like(given, "probe", "mIoU", n=val.count, classes=val_set.num_classes, protocol=protocol, **about)
    fitted_rows = [[row for result in results for row in _rows(result, template, cosines)] for results in fits]
    recorded = rows_of_seeds(fitted_rows, range(given.seed, given.seed + len(fits)))
    log_best(recorded, "mIoU")
    first = recorded[0].row
    areas = majority_areas(train.pixels_per_image(), val.pixels_per_image())
    recorded.append(miou_row(first.baseline("majority class", 0.0), areas))
    for name, result in pixels.items():
        rule = replace(first.baseline(name, 0.0), selected=result.selected)
        recorded.append(miou_row(rule, result.areas))
    return write_recorded_rows(given.out, read["val"].ids, recorded)


def _save(out: Path, results: Sequence[ProbeResult], classes: Sequence[str]) -> None:
    first = results[0].norm
    for norm in dict.fromkeys(result.norm for result in results):
        name = "heads" if norm == first else f"heads_{norm.replace(' ', '_')}"
        heads = [result.head for result in results if result.norm == norm]
        save_heads(out / f"{name}.safetensors", heads, {"classes": classes, "format": 1})


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


def _rows(result: ProbeResult, template: EvalResult, cosines: Mapping[Key, float]) -> list[RecordedRow]:
    """Rows of mIoU with its interval and held-out score, mAcc, aAcc, and mIoU of the head best on validation."""
    if " " in result.norm:  # the facet of stored features is the template's
        template = replace(template, facet=ReadAt.parse(result.norm).facet)
    template = replace(template, block=result.name, norm=ReadAt.parse(result.norm).of)
    shown = replace(template, value=100 * result.best_scores.miou, note=ON_VALIDATION, selected=SHOWN)
    template = replace(template, selected=selection_of(result))
    miou, *others = segmentation_rows(template, result.areas)
    miou = replace(miou, row=replace(miou.row, heldout=100 * result.heldout[result.chosen]))
    of_blocks = [cosines[result.norm, block] for block in result.blocks if (result.norm, block) in cosines]
    if len(of_blocks) == 1:
        miou = replace(miou, row=replace(miou.row, token_cosine=of_blocks[0]))
    return [miou, *others, RecordedRow(shown)]
