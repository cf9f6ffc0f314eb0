"""Scores of class-agnostic boxes: AP and AR of COCO, by pycocotools, with what images contribute to them.

All predictions have the score 1 and all objects one class. Equal scores keep their order: images in the order given,
and the boxes of an image in theirs.
"""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from pycocotools.mask import area, encode, toBbox

from dinoskip.results.average_precision import MatchedDetections, matched_detections

F64 = NDArray[np.float64]
Outline = dict[str, Any]  # a mask as runs: size, counts
Outlines = Sequence[Outline]
Entries = Sequence[Sequence[Mapping[str, Any]]]  # of each image its objects, as COCO has them
_ALIKE = {"category_id": 1, "score": 1.0}  # boxes of no class, the one as good as the other
OVERLAPS: F64 = np.linspace(0.5, 0.95, 10)  # COCO's IoU thresholds
MOST = 100  # boxes of an image that count


@dataclass(frozen=True, eq=False)
class MatchedBoxes:
    """Boxes of n images matched to the objects, at each of the ten :data:`OVERLAPS`.

    ``hits`` bool (10, D) of all D boxes in order; ``images`` int (D,), which image each is of; ``objects`` int (n,),
    how many there are; ``ap`` and ``ar`` (10,), average precision and recall by pycocotools, nan without any object.
    ``detections`` are the records of AP.
    """

    hits: NDArray[np.bool_]
    images: NDArray[np.int64]
    objects: NDArray[np.int64]
    ap: F64
    ar: F64
    detections: MatchedDetections

    @property
    def recalled(self) -> NDArray[np.int64]:
        """Objects hit and all objects, by image and overlap (n, 10, 2): the records of AR."""
        counts = np.zeros((len(self.objects), len(OVERLAPS), 2), dtype=np.int64)
        np.add.at(counts[..., 0], self.images, self.hits.T)
        counts[..., 1] = self.objects[:, None]
        return counts


def match_boxes(predicted: Sequence[NDArray[Any]], truth: Sequence[NDArray[Any]]) -> MatchedBoxes:
    """Match predicted boxes (D_i, 4) of every image to its objects (K_i, 4), x1 y1 x2 y2 in pixels, end exclusive."""
    return _matched([_boxes(boxes) for boxes in predicted], [_boxes(boxes) for boxes in truth], "bbox")


def match_masks(predicted: Sequence[Outlines], truth: Sequence[Outlines]) -> MatchedBoxes:
    """Match masks (:func:`outline`) as :func:`match_boxes` matches boxes; the overlap of masks counts."""
    return _matched(
        [list(map(_mask, image)) for image in predicted], [list(map(_mask, image)) for image in truth], "segm"
    )


def outline(mask: NDArray[np.bool_]) -> Outline:
    """Return a mask (H, W) run by run, as COCO has it: few bytes."""
    encoded: Outline = encode(np.asfortranarray(mask, dtype=np.uint8))
    return encoded


def _boxes(boxes: NDArray[Any]) -> list[dict[str, Any]]:
    corners = np.asarray(boxes, dtype=np.float64).reshape(-1, 4).tolist()
    return [{**_ALIKE, "bbox": [x1, y1, x2 - x1, y2 - y1], "area": (x2 - x1) * (y2 - y1)} for x1, y1, x2, y2 in corners]


def _mask(outline: Outline) -> dict[str, Any]:
    return {**_ALIKE, "segmentation": outline, "area": float(area(outline)), "bbox": toBbox(outline).tolist()}


def coco_evaluation(truth: Entries, predicted: Entries, classes: Sequence[Any], kind: str) -> COCOeval:
    """pycocotools' evaluation of what is found in n images by their objects, both as COCO's entries.

    An entry has ``bbox``, ``segmentation``, ``area``, ``category_id`` and ``iscrowd`` (0 if absent), and ``score`` if
    it is found. ``kind`` is ``bbox`` or ``segm``. The 100 best of an image count, objects of every size.
    """
    with contextlib.redirect_stdout(io.StringIO()):  # pycocotools prints what it does
        evaluation = COCOeval(_coco(truth, classes), _coco(predicted, classes), kind)
        parameters = evaluation.params
        parameters.maxDets, parameters.areaRng, parameters.areaRngLbl = [MOST], [[0, math.inf]], ["all"]
        evaluation.evaluate()
        evaluation.accumulate()
    return evaluation


def _coco(entries: Entries, classes: Sequence[Any]) -> COCO:
    """Entries of images as pycocotools has them; their ids begin with 1, as 0 means none there."""
    coco = COCO()
    images = [{"id": i, "height": 0, "width": 0} for i in range(len(entries))]  # outlines have their size
    coco.dataset = {"images": images, "categories": [{"id": category} for category in classes], "annotations": []}
    for image, image_entries in enumerate(entries):
        for entry in image_entries:
            number = len(coco.dataset["annotations"]) + 1
            coco.dataset["annotations"].append({"iscrowd": 0, **entry, "image_id": image, "id": number})
    coco.createIndex()
    return coco


def coco_records(evaluation: COCOeval, images: int, classes: int) -> MatchedDetections:
    """Return the records of AP of what :func:`coco_evaluation` matched in so many images of so many classes.

    Class k is the one of the k-th smallest number. Crowds are no objects; what is matched to them is ignored.
    """
    seen = [(at // images, image) for at, image in enumerate(evaluation.evalImgs) if image is not None]
    objects = np.zeros((images, classes), dtype=np.int64)
    flat: dict[str, list[NDArray[Any]]] = {name: [np.zeros(0)] for name in ("image", "class", "score")}
    flags: dict[str, list[NDArray[np.bool_]]] = {
        name: [np.zeros((len(OVERLAPS), 0), dtype=np.bool_)] for name in ("dtMatches", "dtIgnore")
    }
    for number, image in seen:
        objects[image["image_id"], number] = int((np.asarray(image["gtIgnore"]) == 0).sum())
        count = len(image["dtScores"])
        flat["image"].append(np.full(count, image["image_id"]))
        flat["class"].append(np.full(count, number))
        flat["score"].append(np.asarray(image["dtScores"], dtype=np.float64))
        for name, parts in flags.items():
            parts.append(np.asarray(image[name], dtype=np.bool_).reshape(len(OVERLAPS), -1))
    where, numbers, scores = (np.concatenate(parts) for parts in flat.values())
    hits, ignored = (np.concatenate(parts, 1) for parts in flags.values())
    return matched_detections(where, scores, numbers, hits, ignored, objects)


def _matched(predicted: Entries, truth: Entries, kind: str) -> MatchedBoxes:
    evaluation = coco_evaluation(truth, predicted, [1], kind)
    of_images = [image for image in evaluation.evalImgs if image is not None]
    hits = [np.asarray(image["dtMatches"], dtype=bool).reshape(len(OVERLAPS), -1) for image in of_images]
    images = [np.full(part.shape[1], image["image_id"]) for image, part in zip(of_images, hits, strict=True)]
    precision, recall = (evaluation.eval[name][..., 0] for name in ("precision", "recall"))  # -1: no object
    return MatchedBoxes(
        hits=np.concatenate(hits, axis=1) if hits else np.zeros((len(OVERLAPS), 0), dtype=np.bool_),
        images=np.concatenate(images).astype(np.int64) if images else np.zeros(0, dtype=np.int64),
        objects=np.array([len(outlines) for outlines in truth], dtype=np.int64),
        ap=_or_nan(precision[..., 0, 0].mean(1)),
        ar=_or_nan(recall[:, 0, 0]),
        detections=coco_records(evaluation, len(truth), 1),
    )


def _or_nan(values: F64) -> F64:
    return np.where(values < 0, np.nan, values)
