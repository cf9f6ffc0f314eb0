"""Matches against all permutations, and areas against predicted maps."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dinoskip.decisions.cross_fitting import SPLITS
from dinoskip_dense.cluster import confusion, match, one_to_one
from dinoskip_dense.cluster.matching import NO_CLASS, ImageCounts, cross_matched_areas, matched_areas, total_counts
from eval.metrics import ConfusionMatrix


@given(seed=st.integers(0, 10**6), clusters=st.integers(1, 5), classes=st.integers(1, 5))
@settings(max_examples=40, deadline=None)
def test_no_other_match_is_better(seed: int, clusters: int, classes: int) -> None:
    counts = np.random.default_rng(seed).integers(0, 30, (clusters, classes))
    union = counts.sum(1, keepdims=True) + counts.sum(0, keepdims=True) - counts
    for by, gain in (("pixels", counts), ("iou", counts / np.maximum(union, 1))):
        chosen = one_to_one(counts, by)
        assert len(set(chosen[chosen != NO_CLASS].tolist())) == min(clusters, classes)
        have = sum(gain[k, c] for k, c in enumerate(chosen) if c != NO_CLASS)
        size = max(clusters, classes)
        padded = np.zeros((size, size))
        padded[:clusters, :classes] = gain
        best = max(padded[range(size), order].sum() for order in permutations(range(size)))
        assert have == pytest.approx(best, abs=1e-9)


@given(seed=st.integers(0, 10**6), clusters=st.integers(2, 7))
@settings(max_examples=40, deadline=None)
def test_areas_are_those_of_the_predicted_maps(seed: int, clusters: int) -> None:
    rng, classes = np.random.default_rng(seed), 4
    maps = [rng.integers(0, clusters, (6, 5)) for _ in range(3)]
    labels = [rng.choice([0, 1, 3, 255], (6, 5)).astype(np.uint8) for _ in range(3)]
    images = [ImageCounts.of(confusion(*pair, (clusters, classes))) for pair in zip(maps, labels, strict=True)]
    chosen = match(total_counts(images, (clusters, classes)))
    for area, own, label in zip(matched_areas(images, chosen, classes), maps, labels, strict=True):
        matrix = ConfusionMatrix(classes)
        matrix.update(chosen[own], label)
        np.testing.assert_array_equal(area, matrix.areas)


def test_more_clusters_than_classes_go_to_their_commonest() -> None:
    counts = np.array([[5, 1], [4, 3], [0, 0], [2, 2]])
    assert match(counts).tolist() == [0, 0, NO_CLASS, 0]
    assert match(counts[:2]).tolist() == [0, 1]


def test_clusters_are_matched_on_other_images_than_those_scored() -> None:
    """Of two images whose clusters are named the other way round, matching on both scores the larger one as right."""
    first, second = np.diag([9, 9]), np.fliplr(np.diag([4, 4]))
    images = [ImageCounts.of(counts) for counts in (first, second)]
    shown = matched_areas(images, match(first + second), 2)
    assert shown[:, 0].sum() == 18
    apart = cross_matched_areas(images, (2, 2))
    assert apart[:, 0].sum() == 0
    assert apart[:, 2].tolist() == [[9 * SPLITS] * 2, [4 * SPLITS] * 2]


@pytest.mark.parametrize("clusters", [4, 9])
def test_matching_on_other_images_gains_nothing_from_noise(clusters: int) -> None:
    """Clusters that know nothing of the classes: chance is 1/4 of the pixels; on the reported images it is more."""
    rng = np.random.default_rng(0)
    images = [ImageCounts.of(rng.multinomial(20, np.full(clusters * 4, 1 / (clusters * 4))).reshape(clusters, 4))
              for _ in range(12)]  # fmt: skip
    shape = (clusters, 4)
    shares = []
    for areas in (matched_areas(images, match(total_counts(images, shape)), 4), cross_matched_areas(images, shape)):
        shares.append(areas[:, 0].sum() / areas[:, 2].sum())
    assert shares[0] > 0.28
    assert shares[1] < 0.26


def test_one_image_is_matched_on_itself() -> None:
    images = [ImageCounts.of(np.diag([3, 5]))]
    assert cross_matched_areas(images, (2, 2))[0].tolist() == [[3, 5]] * 3
