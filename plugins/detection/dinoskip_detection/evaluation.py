"""Detection on a data set: a detector for each block that is asked for, AP of boxes and masks, result rows."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from pycocotools.mask import area

from dinoskip.errors import DataError
from dinoskip.io.files import save_tensors, write_json
from dinoskip.results.records import RecordedRow, write_recorded_rows
from dinoskip.results.rows import EvalResult
from dinoskip.results.statistics import explained_interval
from dinoskip.settings.tasks import TaskInputs
from dinoskip_detection.config import DetectionConfig
from dinoskip_detection.fit import Found, find, fit_detector
from dinoskip_detection.objects import Entry, Objects
from dinoskip_detection.scores import PARTS, match
from eval.baselines import BOXES, boxes_as_masks
from eval.object_scores import MOST, outline
from eval.rows import baseline_rows, log_best, percent_row, row_like

Entries = list[list[Entry]]
_KINDS = {"box": "bbox", "mask": "segm"}


def evaluate(given: TaskInputs) -> list[EvalResult]:
    """Train Mask R-CNN on blocks of a network and write what it scores.

    Labels are ``train`` and ``val`` (:class:`DetectionDataset`). Writes ``rows.json``: ``box AP``, ``box AP50``,
    ``box AP75`` and, of sets with outlines, the same of masks, in percent, of each block with a detector, then of the
    baselines. ``detections_block{b}.json`` is COCO's format of results, ``detector_block{b}`` the weights
    (``network_block{b}`` those of a network that was fine-tuned), as safetensors.

    Raises :class:`DataError` for classes that differ between the splits, and, before anything is trained, for an
    outline that is no mask of its image.
    """
    config: DetectionConfig = given.settings
    backbone, out, seed, workers = given.backbone, given.out, given.seed, given.workers
    train, val = Objects(given.labels["train"]), Objects(given.labels["val"])
    if list(train.categories.items()) != list(val.categories.items()) or (train.coco is None) != (val.coco is None):
        message = f"{val.dataset.name}: the classes of {val.dataset.split} are not those of {train.dataset.split}"
        raise DataError(message)
    out.mkdir(parents=True, exist_ok=True)
    numbers = list(backbone.numbers) if isinstance(given.blocks, str) else given.block_numbers
    truth = [val.outlined(i) for i in range(len(val))]
    for i in range(len(train)):
        train.outlined(i)  # what cannot be learnt is refused before the hours of training, not in them
    template = row_like(
        given, "detection", "box AP", facet="out", norm=config.norm, protocol=config.label,
        classes=len(val.categories), resolution=f"short side {config.short_side}, long side up to {config.long_side}",
    )  # fmt: skip
    recorded: list[RecordedRow] = []
    for block in numbers if config.trained == "each" else numbers[-1:]:
        network = copy.deepcopy(backbone) if config.fine_tune else backbone
        model = fit_detector(network, train, block, config, seed=seed, workers=workers)
        predicted = result_entries(find(model, val, backbone.device, workers), list(val.categories))
        names = val.dataset.ids if val.coco is None else val.coco.numbers
        listed = [{"image_id": names[i], **entry} for i, entries in enumerate(predicted) for entry in entries]
        write_json(out / f"detections_block{block}.json", listed)
        save_tensors(out / f"detector_block{block}.safetensors", _state(model), {"format": "1"})
        if config.fine_tune:
            save_tensors(out / f"network_block{block}.safetensors", _state(network.model), {"format": "1"})
        recorded += detection_rows(replace(template, block=str(block)), truth, predicted, val)
    log_best(recorded, "box AP")
    for name, predicted in baseline_entries(train, val).items():
        recorded += baseline_rows(name, detection_rows(template, truth, predicted, val))
    return write_recorded_rows(out, val.dataset.ids, recorded)


def _state(model: Any) -> dict[str, Any]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}


def result_entries(detections: Sequence[Found], categories: Sequence[Any]) -> Entries:
    """Return what was found in every image, as COCO's results have it: boxes x y w h to a hundredth of a pixel."""
    entries: Entries = []
    for image in detections:
        sides = np.concatenate([image.boxes[:, :2], image.boxes[:, 2:] - image.boxes[:, :2]], 1).round(2).tolist()
        outlines: Sequence[Any] = image.outlines or [None] * len(sides)
        entries.append(
            [
                _entry(categories[number], box, runs, float(score))
                for number, box, runs, score in zip(image.classes, sides, outlines, image.scores, strict=True)
            ]
        )
    return entries


def _entry(category: Any, box: Sequence[float], runs: Mapping[str, Any] | None, score: float) -> Entry:
    entry = {"category_id": category, "bbox": list(box), "score": round(score, 5)}
    if runs is None:
        return entry
    counts = runs["counts"]
    return {**entry, "segmentation": {**runs, "counts": counts.decode() if isinstance(counts, bytes) else counts}}


def detection_rows(template: EvalResult, truth: Entries, predicted: Entries, val: Objects) -> list[RecordedRow]:
    """Return rows of the AP of boxes, and of masks where the set has outlines, with intervals and records of images."""
    rows: list[RecordedRow] = []
    for what, kind in [("box", "bbox")] if val.coco is None else _KINDS.items():
        sized = [[{**entry, "area": _area(entry, kind)} for entry in entries] for entries in predicted]
        matches = match(truth, sized, list(val.categories), kind)
        for part in PARTS:
            records = matches.records(part)
            rows.append(percent_row(template, f"{what} {part}", matches.ap(part), explained_interval(records), records))
    return rows


def _area(entry: Mapping[str, Any], kind: str) -> float:
    return entry["bbox"][2] * entry["bbox"][3] if kind == "bbox" else float(area(entry["segmentation"]))


def baseline_entries(train: Objects, val: Objects) -> dict[str, Entries]:
    """Return what rules find that look at no image: a box for each class, scored by how often it is in training."""
    often = dict.fromkeys(val.categories, 0)
    for i in range(len(train)):
        for entry in train.entries(i):
            often[entry["category_id"]] += not entry["iscrowd"]
    total, likeliest = max(1, sum(often.values())), sorted(often, key=lambda category: -often[category])[:MOST]
    baselines: dict[str, Entries] = {name: [] for name in BOXES}
    for i in range(len(val)):
        size = val.size(i)
        masks = boxes_as_masks(size)
        for name, rule in BOXES.items():
            x1, y1, x2, y2 = rule(*size)
            box, runs = (x1, y1, x2 - x1, y2 - y1), None if val.coco is None else outline(masks[name])
            baselines[name].append([_entry(category, box, runs, often[category] / total) for category in likeliest])
    return baselines
