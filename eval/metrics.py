"""Segmentation scores from areas summed over a whole dataset, and box overlap.

The definition is that of mmsegmentation's IoUMetric, in exact integers. Per class c, over all pixels whose
label is not ignored: intersect = #(pred = label = c), area_pred = #(pred = c), area_label = #(label = c),
union = area_pred + area_label - intersect. Areas are summed over all images before any ratio is taken.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True)
class SegmentationScores:
    """Ratios in 0..1 over a whole dataset.

    Attributes
    ----------
    miou
        Mean of ``iou`` over the classes that have one; nan if none has.
    macc
        Mean of ``acc`` over the classes that occur in the labels; nan if none does.
    aacc
        Correctly labelled part of all labelled pixels; nan if there are none.
    iou, acc
        float64 (num_classes,): per class intersect / union and intersect / area_label, nan where 0 / 0.
    """

    miou: float
    macc: float
    aacc: float
    iou: NDArray[np.float64]
    acc: NDArray[np.float64]


def ratios(top: NDArray[np.int64], bottom: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return ``top`` over ``bottom`` (K,), as of areas by class; nan where there is nothing below."""
    found = np.full(top.shape, np.nan)
    np.divide(top, bottom, out=found, where=bottom > 0)
    return found


def _mean(values: NDArray[np.float64]) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the mean of no class is nan, which is what is meant
        return float(np.nanmean(values))


def _integers(name: str, value: object) -> NDArray[np.integer]:
    array = value.cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
    if array.dtype == np.bool_ or not np.issubdtype(array.dtype, np.integer):
        raise ValueError(f"{name} must hold integer classes, not {array.dtype}")
    return array


class ConfusionMatrix:
    """Counts of (label, prediction) pairs over all images given to :meth:`update`.

    Parameters
    ----------
    num_classes
        Classes 0..num_classes-1. Other values belong to no class: such a label still lets its prediction count
        in area_pred, such a prediction still lets its label count in area_label.
    ignore_index
        Pixels with this label are left out, whatever is predicted there.
    reduce_zero_label
        ADE20K style labels: 0 and 255 become 255, every other k becomes k - 1. Predictions are not shifted.
    """

    def __init__(self, num_classes: int, ignore_index: int = 255, reduce_zero_label: bool = False) -> None:
        if num_classes < 1:
            raise ValueError(f"num_classes must be at least 1, not {num_classes}")
        self.num_classes = num_classes
        self.ignore_index = ignore_index
        self.reduce_zero_label = reduce_zero_label
        self.counts = np.zeros((num_classes + 1, num_classes + 1), dtype=np.int64)  # [label, pred]; last: no class

    def update(self, pred: ArrayLike | torch.Tensor, label: ArrayLike | torch.Tensor) -> None:
        """Add integer maps ``pred`` and ``label`` of one shape. Raises ValueError on other shapes or dtypes."""
        predicted, truth = _integers("pred", pred), _integers("label", label)
        if predicted.shape != truth.shape:
            raise ValueError(f"pred has shape {predicted.shape}, label {truth.shape}; they must be the same")
        truth = truth.astype(np.int64).ravel()
        if self.reduce_zero_label:
            truth = np.where((truth == 0) | (truth == 255), 255, truth - 1)
        keep = truth != self.ignore_index
        rows, columns = self._classes(truth[keep]), self._classes(predicted.astype(np.int64).ravel()[keep])
        size = self.num_classes + 1
        self.counts += np.bincount(rows * size + columns, minlength=size * size).reshape(size, size)

    def _classes(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.where((values < 0) | (values >= self.num_classes), self.num_classes, values)

    @property
    def intersect(self) -> NDArray[np.int64]:
        """Pixels (num_classes,) where prediction and label are this class."""
        return self.counts.diagonal()[:-1].copy()

    @property
    def area_pred(self) -> NDArray[np.int64]:
        """Pixels (num_classes,) predicted as this class and not ignored."""
        return np.asarray(self.counts.sum(axis=0)[:-1])

    @property
    def area_label(self) -> NDArray[np.int64]:
        """Pixels (num_classes,) labelled as this class."""
        return np.asarray(self.counts.sum(axis=1)[:-1])

    @property
    def union(self) -> NDArray[np.int64]:
        """Pixels (num_classes,) predicted or labelled as this class."""
        return self.area_pred + self.area_label - self.intersect

    @property
    def areas(self) -> NDArray[np.int64]:
        """Pixels (3, num_classes): ``intersect``, ``area_pred`` and ``area_label``, all that the scores need."""
        return np.stack([self.intersect, self.area_pred, self.area_label])

    def scores(self) -> SegmentationScores:
        """Return the scores of everything counted so far.

        A class that is predicted but never labelled has IoU 0 and counts in ``miou``; a class that is neither is
        nan and does not.
        """
        return scores_of_areas(self.areas)


def scores_of_areas(areas: NDArray[np.int64]) -> SegmentationScores:
    """Return the scores of areas (3, K) as :attr:`ConfusionMatrix.areas` has them, summed over a data set."""
    intersect, predicted, label = areas
    iou, acc = ratios(intersect, predicted + label - intersect), ratios(intersect, label)
    total = int(label.sum())
    aacc = int(intersect.sum()) / total if total else float("nan")
    return SegmentationScores(_mean(iou), _mean(acc), aacc, iou, acc)
