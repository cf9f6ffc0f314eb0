"""AP, AR, their records and intervals."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torchvision.ops import box_iou

from dinoskip.results.average_precision import average_precision
from dinoskip.results.statistics import interval, score
from eval.object_scores import OVERLAPS, match_boxes, match_masks, outline


def some_boxes(seed: int, images: int = 12) -> tuple[list[np.ndarray], list[np.ndarray]]:
    rng = np.random.default_rng(seed)
    truth, predicted = [], []
    for _ in range(images):
        corner, side = rng.integers(0, 60, (int(rng.integers(0, 5)), 2)), rng.integers(8, 40)
        own = np.concatenate([corner, corner + side], axis=1).astype(np.float64)
        moved = own[: int(rng.integers(0, 4))] + rng.integers(-5, 6, (1, 4))
        moved[:, 2:] = np.maximum(moved[:, 2:], moved[:, :2] + 1)
        truth.append(own)
        predicted.append(np.concatenate([moved, [[0, 0, 30, 30]]]))
    return predicted, truth


def greedy(predicted: list[np.ndarray], truth: list[np.ndarray], overlap: float) -> list[bool]:
    """Whether each box hits: in order, each takes the free object of the largest overlap (the last one of equals)."""
    hits = []
    for own, objects in zip(predicted, truth, strict=True):
        free = [True] * len(objects)
        for box in own:
            iou = box_iou(*(torch.from_numpy(one).double().view(-1, 4) for one in (box, objects)))[0].tolist()
            best, chosen = min(overlap, 1 - 1e-10), -1
            for number, value in enumerate(iou):
                if free[number] and value >= best:
                    best, chosen = value, number
            hits.append(chosen >= 0)
            if chosen >= 0:
                free[chosen] = False
    return hits


@pytest.mark.parametrize("seed", range(3))
def test_equals_counting_by_hand(seed: int) -> None:
    predicted, truth = some_boxes(seed)
    matched = match_boxes(predicted, truth)
    objects = sum(map(len, truth))
    for number, overlap in enumerate(OVERLAPS):
        hits = greedy(predicted, truth, overlap)
        assert matched.hits[number].tolist() == hits
        right, precision, recall = 0, [], []
        for rank, hit in enumerate(hits, 1):
            right += hit
            precision.append(right / rank)
            recall.append(right / objects)
        at = [[p for p, r in zip(precision, recall, strict=True) if r >= k / 100] for k in range(101)]
        assert matched.ap[number] == pytest.approx(sum(max(one, default=0) for one in at) / 101, abs=1e-9)
        assert matched.ar[number] == pytest.approx(sum(hits) / objects, abs=1e-12)
    assert score(matched.recalled) == pytest.approx(matched.ar.mean(), abs=1e-12)


def test_the_records_are_of_the_score_itself() -> None:
    predicted, truth = some_boxes(7, 40)
    matched = match_boxes(predicted, truth)
    np.testing.assert_allclose(average_precision(matched.detections)[:, 0], matched.ap, atol=1e-12)
    first = matched.detections.at(0, 1)
    assert score(first) == pytest.approx(matched.ap[0], abs=1e-12)
    low, high = interval(first)
    assert 0 < low < matched.ap[0] < high < 1


def test_nothing_to_find_is_not_a_number_and_nothing_found_is_0() -> None:
    box, none = np.array([[0.0, 0, 9, 9]]), np.zeros((0, 4))
    empty = match_boxes([box, none], [none, none])
    assert np.isnan(empty.ap).all()
    assert np.isnan(interval(empty.detections)).all()
    missed = match_boxes([none, none], [box, box])
    assert missed.ap.tolist() == missed.ar.tolist() == [0.0] * 10
    assert missed.hits.shape == (10, 0)
    assert match_boxes([box], [box]).ap.tolist() == pytest.approx([1.0] * 10)


def filled(boxes: np.ndarray) -> list[np.ndarray]:
    masks = []
    for x1, y1, x2, y2 in boxes.astype(int):
        masks.append(np.zeros((120, 130), dtype=bool))
        masks[-1][y1:y2, x1:x2] = True
    return masks


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_rectangles_score_the_same_as_masks_and_as_boxes(seed: int) -> None:
    predicted, truth = ([np.clip(own, 0, 120) for own in boxes] for boxes in some_boxes(seed))
    boxes = match_boxes(predicted, truth)
    masks = match_masks(*([[outline(mask) for mask in filled(own)] for own in part] for part in (predicted, truth)))
    assert boxes.hits.any()
    assert (boxes.hits == masks.hits).all()
    np.testing.assert_array_equal(boxes.images, masks.images)
    np.testing.assert_array_equal(boxes.objects, masks.objects)
    np.testing.assert_allclose([boxes.ap, boxes.ar], [masks.ap, masks.ar], atol=1e-12)
