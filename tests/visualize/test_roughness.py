from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from visualize.roughness import roughness, smoother

sizes = st.integers(1, 6)
seeds = st.integers(0, 10_000)


def brute_force(scores: np.ndarray) -> float:
    """The definition, pair by pair, with the variance of each coordinate."""
    height, width, channels = scores.shape
    pairs = []
    for i, j in itertools.product(range(height), range(width)):
        for a, b in ((i + 1, j), (i, j + 1)):
            if a < height and b < width:
                pairs.append(sum((scores[i, j, c] - scores[a, b, c]) ** 2 for c in range(channels)))
    variance = sum(scores[..., c].var(ddof=1) for c in range(channels))
    return float(np.mean(pairs) / (2 * variance))


@given(height=sizes, width=sizes, channels=st.integers(1, 4), count=st.integers(1, 3), seed=seeds)
@settings(max_examples=60, deadline=None)
def test_it_is_the_definition_for_every_picture_of_a_batch(height, width, channels, count, seed):
    scores = np.random.default_rng(seed).normal(size=(count, height, width, channels))
    found = roughness(scores)
    assert found.shape == (count,)
    if height * width == 1:
        assert np.isnan(found).all()
    else:
        np.testing.assert_allclose(found, [brute_force(one) for one in scores], rtol=1e-12)


@given(seed=seeds, shift=st.floats(-100, 100), scale=st.floats(1e-6, 1e6), sign=st.sampled_from([-1, 1]))
@settings(max_examples=60, deadline=None)
def test_moving_scaling_and_turning_the_colours_changes_nothing(seed, shift, scale, sign):
    rng = np.random.default_rng(seed)
    scores, turn = rng.normal(size=(5, 7, 3)), np.linalg.qr(rng.normal(size=(3, 3)))[0]
    expected = roughness(scores)
    np.testing.assert_allclose(roughness(scale * (sign * scores @ turn + shift)), expected, rtol=1e-9)
    np.testing.assert_allclose(roughness(scores.swapaxes(0, 1)[::-1]), expected, rtol=1e-12)


def test_the_mean_over_all_orders_of_the_tokens_is_one():
    values = np.array([[0.0, 3.0], [1.0, -1.0], [5.0, 0.5], [-2.0, 2.0], [0.25, 0.0], [9.0, 1.0]])
    orders = np.array([values[list(order)] for order in itertools.permutations(range(6))])
    np.testing.assert_allclose(roughness(orders.reshape(-1, 2, 3, 2)).mean(), 1.0, rtol=1e-12)


def test_shuffled_tokens_of_a_smooth_picture_lose_their_order():
    ramp = np.indices((14, 14)).transpose(1, 2, 0)
    rng = np.random.default_rng(0)
    shuffled = np.stack([rng.permutation(ramp.reshape(-1, 2)).reshape(ramp.shape) for _ in range(200)])
    assert roughness(ramp) < 0.05
    np.testing.assert_allclose(roughness(shuffled).mean(), 1.0, atol=0.02)


@pytest.mark.parametrize(("height", "width"), [(2, 2), (4, 6), (28, 28), (1, 8)])
def test_closed_forms_of_a_checkerboard_a_ramp_and_two_halves(height, width):
    n = height * width
    rows, columns = np.indices((height, width))
    pairs, across = (height - 1) * width + height * (width - 1), height * (width - 1)
    board = ((rows + columns) % 2)[..., None] * np.ones(3)
    assert roughness(board) == pytest.approx(2 * (n - 1) / n)
    ramp = columns[..., None].astype(float)
    assert roughness(ramp) == pytest.approx(across / pairs * 6 * (n - 1) / (n * (width**2 - 1)))
    halves = (columns >= width / 2)[..., None].astype(np.float32)
    assert roughness(halves) == pytest.approx(2 * height / pairs * (n - 1) / n)


def test_pictures_of_one_colour_have_no_roughness():
    tokens = np.random.default_rng(0).normal(size=(4, 4, 3))
    grey = np.full((4, 4, 3), 0.1) + 1e-16 * tokens
    broken = np.where(np.arange(3) == 1, np.inf, tokens)
    missing = np.where(np.arange(3) == 1, np.nan, tokens)
    found = roughness(np.stack([tokens, grey, np.zeros((4, 4, 3)), broken, missing]))
    assert np.isfinite(found).tolist() == [True, False, False, False, False]
    with pytest.raises(ValueError, match=r"not \(4, 4\)"):
        roughness(np.zeros((4, 4)))


def test_smoother_is_the_sign_test():
    ours, theirs = [0.1, 0.2, 0.3, 0.4, None, math.nan, 0.5], [0.2, 0.3, 0.4, 0.3, 0.1, 0.1, 0.5]
    wins, counted, p = smoother(ours, theirs)
    assert (wins, counted) == (3, 4)
    assert p == pytest.approx(2 * (math.comb(4, 3) + 1) / 2**4)
    assert smoother(theirs, ours) == (1, 4, p)
    assert smoother([None, 1.0], [1.0, 1.0]) == (0, 0, 1.0)
    assert smoother([0.0] * 10, [1.0] * 10) == (10, 10, pytest.approx(2 / 2**10))
    with pytest.raises(ValueError, match="shorter"):
        smoother([1.0], [])
