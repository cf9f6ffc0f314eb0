"""J and F against their definitions: sets of pixels, and distances between all boundary pixels."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dinoskip_video.video import boundary, frame_scores, object_scores


def edge_pixels(mask: np.ndarray) -> list[tuple[int, int]]:
    height, width = mask.shape
    return [
        (y, x)
        for y in range(height)
        for x in range(width)
        if any(
            y + down < height and x + right < width and mask[y, x] != mask[y + down, x + right]
            for down, right in ((0, 1), (1, 0), (1, 1))
        )
    ]


def brute(predicted: np.ndarray, truth: np.ndarray, number: int) -> tuple[float, float]:
    ours, theirs = predicted == number, truth == number
    union = (ours | theirs).sum()
    j = (ours & theirs).sum() / union if union else 1.0
    mine, wanted = edge_pixels(ours), edge_pixels(theirs)
    if not mine or not wanted:
        return j, float(not mine and not wanted)
    radius = math.ceil(0.008 * math.hypot(*truth.shape))

    def share(some: list, others: list) -> float:
        return float(np.mean([any(math.dist(one, two) <= radius for two in others) for one in some]))

    precision, recall = share(mine, wanted), share(wanted, mine)
    return j, 2 * precision * recall / (precision + recall) if precision + recall else 0.0


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 9999), st.integers(1, 12), st.integers(1, 160), st.integers(1, 3))
def test_equal_definition(seed: int, high: int, wide: int, objects: int) -> None:
    """Up to 160 pixels wide the tolerance is one or two pixels; blobs, so that boundaries are apart."""
    rng = np.random.default_rng(seed)
    maps = [rng.integers(0, objects + 1, (-(-high // 4), -(-wide // 7)), dtype=np.uint8) for _ in range(2)]
    predicted, truth = (one.repeat(4, 0).repeat(7, 1)[:high, :wide] for one in maps)
    truth = np.where(rng.random(truth.shape) < 0.02, 255, truth).astype(np.uint8)
    got = frame_scores(predicted, truth, objects)
    np.testing.assert_allclose(got, [brute(predicted, truth, one + 1) for one in range(objects)], atol=1e-12)


def test_the_last_row_and_column_have_fewer_neighbours() -> None:
    mask = np.zeros((3, 3), bool)
    mask[2, 1] = True
    assert (
        sorted(zip(*np.nonzero(boundary(mask)), strict=True)) == edge_pixels(mask) == [(1, 0), (1, 1), (2, 0), (2, 1)]
    )
    assert not boundary(np.ones((1, 1), bool)).any()


def test_an_object_too_many_is_an_error() -> None:
    with pytest.raises(ValueError, match="object 3 is predicted, there are 2"):
        frame_scores(np.full((2, 2), 3, np.uint8), np.ones((2, 2), np.uint8), 2)


def test_means_recall_and_decay() -> None:
    scores = object_scores(np.array([[0.9, 0.8, 0.7, 0.6, 0.2], [0.5, 0.5, 0.5, 0.5, 0.5]]))
    np.testing.assert_allclose(scores.mean, [0.64, 0.5])
    np.testing.assert_allclose(scores.recall, [0.8, 0])  # above one half, not at it
    np.testing.assert_allclose(scores.decay, [0.85 - 0.4, 0])  # quarters share their ends: frames 1-2 and 4-5
    assert object_scores(np.array([[0.3]])).decay == 0
