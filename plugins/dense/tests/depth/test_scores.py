"""Depth metrics against plain loops over pixels."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from dinoskip_dense.depth.scores import NAMES, depth_scores, scored_part


def brute(predicted: np.ndarray, truth: np.ndarray, low: float, high: float) -> list[float]:
    pairs = [
        (min(max(p, low), high), t) for p, t in zip(predicted.ravel(), truth.ravel(), strict=True) if low < t < high
    ]
    n, logs = len(pairs), [math.log(p) - math.log(t) for p, t in pairs]
    mean = sum(logs) / n
    return [
        math.sqrt(sum((p - t) ** 2 for p, t in pairs) / n),
        sum(abs(p - t) / t for p, t in pairs) / n,
        sum(abs(math.log10(p) - math.log10(t)) for p, t in pairs) / n,
        100 * math.sqrt(sum(x * x for x in logs) / n - mean * mean),
        *(sum(max(p / t, t / p) < 1.25**k for p, t in pairs) / n for k in (1, 2, 3)),
        math.sqrt(sum(x * x for x in logs) / n),
        sum((p - t) ** 2 / t for p, t in pairs) / n,
    ]


def test_scores_are_those_of_loops_for_all_heads_at_once() -> None:
    rng = np.random.default_rng(0)
    truth = rng.uniform(0, 12, (9, 11))
    truth[0] = 0
    predicted = np.maximum(truth * rng.uniform(0.6, 1.5, (2, 9, 11)) + 0.2, 0.001)
    have = depth_scores(torch.from_numpy(predicted), torch.from_numpy(truth), 0.5, 10.0, "all")
    assert have.shape == (2, len(NAMES))
    for own, one in zip(have.numpy(), predicted, strict=True):
        np.testing.assert_allclose(own, brute(one, truth, 0.5, 10.0), rtol=1e-9)


def test_the_scored_part() -> None:
    assert scored_part(480, 640, "eigen") == (slice(45, 471), slice(41, 601))
    assert scored_part(240, 320, "eigen") == (slice(22, 235), slice(20, 300))
    assert scored_part(375, 1242, "garg") == (slice(153, 371), slice(44, 1197))
    assert scored_part(5, 7, "all") == (slice(0, 5), slice(0, 7))


def test_an_image_without_a_measured_pixel_has_no_score() -> None:
    nothing = depth_scores(torch.ones(3, 4, 4), torch.zeros(4, 4), 0.001, 10.0, "all")
    assert bool(nothing.isnan().all())
    exact = depth_scores(torch.full((4, 4), 2.0), torch.full((4, 4), 2.0), 0.001, 10.0, "all")
    assert exact.tolist() == pytest.approx([0, 0, 0, 0, 1, 1, 1, 0, 0], abs=1e-7)
