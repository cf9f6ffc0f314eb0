"""Patches in memory, and their labels."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dinoskip.errors import DataError
from eval.labelled import LabelledTokens
from eval.retrieval import choose_patches, patch_labels, remember

GRID, CLASSES = (3, 4), 4


def test_patches_that_divide_the_label_are_counted() -> None:
    label = np.random.default_rng(0).choice([0, 1, 3, 255], (6, 8)).astype(np.uint8)
    label[:2, :2] = 255
    mixes = patch_labels(label, GRID, CLASSES)
    assert mixes.shape == (12, CLASSES)
    for patch, mix in enumerate(mixes):
        y, x = divmod(patch, 4)
        cell = label[2 * y : 2 * y + 2, 2 * x : 2 * x + 2]
        wanted = np.bincount(cell.ravel(), minlength=256)[:CLASSES]
        np.testing.assert_allclose(mix, wanted / max(1, wanted.sum()), atol=1e-6)
    assert not mixes[0].any()


@given(height=st.integers(1, 13), width=st.integers(1, 13), seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_pixels_on_a_border_count_by_area(height: int, width: int, seed: int) -> None:
    label = np.random.default_rng(seed).choice([0, 1, 2, 255], (height, width)).astype(np.uint8)
    fine = label.repeat(GRID[0], 0).repeat(GRID[1], 1)  # now every patch has whole pixels
    np.testing.assert_allclose(patch_labels(label, GRID, CLASSES), patch_labels(fine, GRID, CLASSES), atol=1e-5)


def test_choice_is_balanced_seeded_and_of_labelled_patches() -> None:
    mixes = np.zeros((100, 2), dtype=np.float32)
    mixes[:90, 0] = 1  # 90 of one class, 5 of another, 5 without a label
    mixes[90:95, 1] = 1
    rare = []
    for seed in range(50):
        chosen = choose_patches(mixes, 10, np.random.default_rng(seed))
        assert (chosen == choose_patches(mixes, 10, np.random.default_rng(seed))).all()
        assert len(np.unique(chosen)) == 10
        assert chosen.max() < 95
        rare.append((chosen >= 90).sum())
    assert np.mean(rare) > 3  # uniform choice would take about a half
    assert len(choose_patches(mixes, 100, np.random.default_rng(0))) == 95


def test_memory_is_spread_over_the_images_and_knows_them_by_id() -> None:
    rng = np.random.default_rng(0)
    labels = [rng.choice([0, 1, 2, 255], (9 + i % 2, 10)).astype(np.uint8) for i in range(7)]
    data = LabelledTokens({}, lambda i: labels[i], GRID, CLASSES, 7)
    ids = [f"image{i}" for i in range(7)]
    memory = remember(data, ids, 30, seed=0)
    assert len(memory.images) == 30
    assert set(np.bincount(memory.images)) == {4, 5}
    np.testing.assert_allclose(memory.labels.sum(1), 1, atol=1e-5)
    again = remember(data, ids, 30, seed=0)
    assert (again.patches == memory.patches).all()
    assert not (remember(data, ids, 30, seed=1).patches == memory.patches).all()
    everything = remember(data, ids, 10**6, seed=0)
    assert len(everything.images) <= 7 * 12
    nothing = LabelledTokens({}, lambda i: np.full((4, 4), 255, np.uint8), GRID, CLASSES, 7)
    with pytest.raises(DataError, match="no training image has a labelled pixel"):
        remember(nothing, ids, 30, seed=0)
