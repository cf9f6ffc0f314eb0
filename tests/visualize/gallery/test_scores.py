from __future__ import annotations

import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision.ops import box_iou

from eval.metrics import ConfusionMatrix
from visualize.gallery.scores import best_iou, image_scores, mean_cosine
from visualize.rasters import nearest

LABELS = arrays.arrays(np.uint8, (6, 9), elements=st.sampled_from([0, 1, 2, 7, 255]))
GUESSES = arrays.arrays(np.uint8, (3, 5), elements=st.sampled_from([0, 1, 2, 3]))


@given(LABELS, GUESSES)
@settings(max_examples=60, deadline=None)
def test_image_scores_are_those_of_the_confusion_matrix(label, guess):
    found = image_scores(guess, label)
    if (label == 255).all():
        assert found == {}
        return
    matrix = ConfusionMatrix(8)
    matrix.update(nearest(guess, label.shape), label)
    scores = matrix.scores()
    assert found["miou"] == pytest.approx(100 * scores.miou)
    assert found["right"] == pytest.approx(100 * scores.aacc)


@given(st.lists(st.tuples(*[st.integers(0, 20)] * 4), min_size=1, max_size=4))
@settings(max_examples=60, deadline=None)
def test_best_iou_is_the_largest_of_each(corners):
    boxes = np.array([(min(a, b), min(c, d), max(a, b) + 1, max(c, d) + 1) for a, b, c, d in corners], np.float64)
    own = (3.0, 4.0, 12.0, 9.0)
    each = box_iou(torch.tensor([own], dtype=torch.float64), torch.from_numpy(boxes))
    assert best_iou(own, boxes) == pytest.approx(float(each.max()))
    assert best_iou(own, np.zeros((0, 4))) is None


def test_mean_cosine_is_the_mean_over_pairs():
    tokens = np.random.default_rng(0).normal(size=(7, 5)).astype(np.float32)
    unit = tokens / np.linalg.norm(tokens, axis=1, keepdims=True)
    pairs = [float(unit[i] @ unit[j]) for i in range(7) for j in range(7) if i != j]
    assert mean_cosine(tokens) == pytest.approx(np.mean(pairs), abs=1e-6)
    assert mean_cosine(np.ones((4, 3), np.float32)) == pytest.approx(1)
    assert mean_cosine(np.ones((1, 3), np.float32)) is None
    assert mean_cosine(np.full((4, 3), np.inf, np.float32)) is None
