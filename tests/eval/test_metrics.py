"""Scores against a pixel-by-pixel count written out in plain Python."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eval.metrics import ConfusionMatrix


def brute(preds: list, labels: list, classes: int, ignore: int, reduce: bool) -> tuple[float, float, float]:
    inter, area_p, area_l = [0] * classes, [0] * classes, [0] * classes
    for pred, label in zip(preds, labels, strict=True):
        for p, y in zip(pred.ravel().tolist(), label.ravel().tolist(), strict=True):
            if reduce:
                y = 255 if y in (0, 255) else y - 1
            if y == ignore:
                continue
            for c in range(classes):
                inter[c] += p == y == c
                area_p[c] += p == c
                area_l[c] += y == c
    iou = [i / (p + y - i) for i, p, y in zip(inter, area_p, area_l, strict=True) if p + y - i]
    acc = [i / y for i, y in zip(inter, area_l, strict=True) if y]
    mean = [sum(x) / len(x) if x else float("nan") for x in (iou, acc)]
    return mean[0], mean[1], sum(inter) / sum(area_l) if sum(area_l) else float("nan")


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 5), st.booleans(), st.sampled_from([255, 0, 2]))
def test_equals_brute_force(seed: int, classes: int, reduce: bool, ignore: int) -> None:
    rng = np.random.default_rng(seed)
    shapes = [(3, 4), (1, 5)]
    values = np.array([*range(classes + 2), 255], dtype=np.uint8)  # with classes that do not exist
    preds = [rng.choice(values, shape) for shape in shapes]
    labels = [rng.choice(values, shape) for shape in shapes]
    matrix = ConfusionMatrix(classes, ignore, reduce)
    for pred, label in zip(preds, labels, strict=True):
        matrix.update(pred, label)
    scores = matrix.scores()
    wanted = brute(preds, labels, classes, ignore, reduce)
    np.testing.assert_allclose([scores.miou, scores.macc, scores.aacc], wanted, atol=1e-12)


def test_areas_are_summed_over_images_not_averaged() -> None:
    matrix = ConfusionMatrix(2)
    matrix.update(np.array([[0]]), np.array([[0]]))
    matrix.update(np.array([[0, 0, 0]]), np.array([[1, 1, 0]]))
    assert matrix.scores().iou.tolist() == [2 / 4, 0.0]
    assert matrix.scores().miou == 0.25


def test_absent_classes_are_nan_and_predicted_only_classes_are_zero() -> None:
    matrix = ConfusionMatrix(4)
    matrix.update(torch.tensor([[0, 2]]), torch.tensor([[0, 0]]))
    scores = matrix.scores()
    np.testing.assert_array_equal(scores.iou, [0.5, np.nan, 0.0, np.nan])
    np.testing.assert_array_equal(scores.acc, [0.5, np.nan, np.nan, np.nan])
    assert scores.miou == 0.25
    assert scores.macc == 0.5


def test_nothing_labelled_gives_nan() -> None:
    matrix = ConfusionMatrix(3)
    matrix.update(np.zeros((2, 2), np.uint8), np.full((2, 2), 255, np.uint8))
    assert np.isnan([matrix.scores().miou, matrix.scores().macc, matrix.scores().aacc]).all()


def test_refuses_what_it_cannot_count() -> None:
    with pytest.raises(ValueError, match="shape"):
        ConfusionMatrix(2).update(np.zeros((2, 3), int), np.zeros((3, 2), int))
    with pytest.raises(ValueError, match="integer"):
        ConfusionMatrix(2).update(np.zeros((2, 2)), np.zeros((2, 2), int))
    with pytest.raises(ValueError, match="num_classes"):
        ConfusionMatrix(0)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 9), st.integers(1, 9), st.integers(1, 9), st.sampled_from([0.0, 0.3, 1.0]))
def test_torchmetrics_agrees_where_it_is_defined(
    seed: int, classes: int, in_pred: int, in_label: int, ignored: float
) -> None:
    """Areas summed over two images, like ours (its ``segmentation.MeanIoU`` averages images: another quantity).

    What differs: a class with an empty union is 0 in torchmetrics' per-class IoU and nan in ours, and both leave it
    out of the mean; a class that is predicted and never labelled counts as accuracy 0 in its macro average, and is left
    out of mAcc, as in mmsegmentation; without labelled pixels it gives 0 and we give nan.
    """
    from torchmetrics.classification import MulticlassAccuracy, MulticlassJaccardIndex  # seconds, for this test alone

    rng = np.random.default_rng(seed)
    matrix = ConfusionMatrix(classes)
    iou, mean = (MulticlassJaccardIndex(classes, average=how, ignore_index=255) for how in ("none", "macro"))
    accuracy, every = (MulticlassAccuracy(classes, average=how, ignore_index=255) for how in ("none", "micro"))
    for shape in ((5, 7), (1, 9)):
        pred = rng.integers(0, min(classes, in_pred), shape)  # some classes in neither, or in one only
        label = rng.integers(0, min(classes, in_label), shape)
        label[rng.random(shape) < ignored] = 255
        matrix.update(pred.astype(np.uint8), label.astype(np.uint8))
        for metric in (iou, mean, accuracy, every):
            metric.update(torch.from_numpy(pred), torch.from_numpy(label))
    scores = matrix.scores()
    np.testing.assert_allclose(np.nan_to_num(scores.iou), iou.compute(), atol=1e-6)
    np.testing.assert_allclose(np.nan_to_num(scores.acc), accuracy.compute(), atol=1e-6)
    np.testing.assert_allclose(np.nan_to_num(scores.aacc), every.compute(), atol=1e-6)
    if matrix.union.any():
        np.testing.assert_allclose(scores.miou, mean.compute(), atol=1e-6)
        np.testing.assert_allclose(scores.macc, accuracy.compute()[matrix.area_label > 0].mean(), atol=1e-6)
    else:
        assert np.isnan([scores.miou, scores.macc, scores.aacc]).all()
