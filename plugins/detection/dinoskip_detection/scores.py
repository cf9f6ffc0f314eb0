"""AP of COCO by pycocotools, over classes, with what images contribute to it.

Crowds and what is found in them count neither way. Of an image the 100 best objects count; objects of every size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dinoskip.results.average_precision import MatchedDetections
from eval.object_scores import OVERLAPS, Entries, coco_evaluation, coco_records

F64 = NDArray[np.float64]
PARTS: Mapping[str, slice] = {"AP": slice(0, len(OVERLAPS)), "AP50": slice(0, 1), "AP75": slice(5, 6)}
"""The overlaps that a metric is the mean over."""


@dataclass(frozen=True, eq=False)
class MatchedClasses:
    """``precision`` (10, classes), nan for a class without an object: AP at each overlap, by pycocotools.

    ``detections`` are the records of AP.
    """

    precision: F64
    detections: MatchedDetections

    def ap(self, part: str) -> float:
        """Mean AP (0..1) over a part of the overlaps and the classes that have an object; nan if none has."""
        of_part = self.precision[PARTS[part]]
        return float(np.nanmean(of_part)) if np.isfinite(of_part).any() else math.nan

    def records(self, part: str) -> MatchedDetections:
        """The records of :meth:`ap`."""
        return self.detections.at(PARTS[part].start, PARTS[part].stop)


def match(truth: Entries, predicted: Entries, classes: Sequence[Any], kind: str) -> MatchedClasses:
    """Match what is found in n images to their objects (:func:`eval.object_scores.coco_evaluation`)."""
    evaluation = coco_evaluation(truth, predicted, classes, kind)
    precision = evaluation.eval["precision"][..., 0, 0].mean(1)  # (overlaps, classes), -1 without an object
    detections = coco_records(evaluation, len(truth), len(classes))
    return MatchedClasses(np.where(precision < 0, np.nan, precision), detections)
