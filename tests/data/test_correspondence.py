"""Matching patches of two crops: against colours that tell the scene's point, through the crops that training cuts."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from dinoskip.data.correspondence import Correspondence

SIDE = st.integers(1, 60)
BOX = st.tuples(st.integers(0, 40), st.integers(0, 40), SIDE, SIDE)
PAIR = st.tuples(BOX, BOX, st.booleans(), st.booleans())


def _scene_point(box: np.ndarray, flip: bool, row: float, column: float, grid: int) -> tuple[float, float]:
    """Return the position in the image of the point (row, column), counted in patches from the corner of a view."""
    column = grid - column if flip else column
    return box[0] + row / grid * box[2], box[1] + column / grid * box[3]


@settings(max_examples=100, deadline=None)
@given(grid=st.integers(1, 5), pairs=st.lists(PAIR, min_size=1, max_size=3))
def test_matches_are_those_of_a_search_point_by_point(grid: int, pairs: list) -> None:
    boxes = np.array([[first, second] for first, second, _, _ in pairs])
    flips = np.array([turned for _, _, *turned in pairs])
    batch = len(pairs)
    for view in (0, 1):
        tokens, weights = (part.numpy() for part in Correspondence(grid).matches(boxes, flips, view))
        expected = {}
        for image in range(batch):
            own, other = boxes[image, view], boxes[image, 1 - view]
            for row in range(grid):
                for column in range(grid):
                    y, x = _scene_point(own, flips[image, view], row + 0.5, column + 0.5, grid)
                    v = (y - other[0]) / other[2]
                    u = (x - other[1]) / other[3]
                    if min(abs(v), abs(u), abs(1 - v), abs(1 - u)) < 1e-9:
                        continue  # on the border: either answer is right
                    token = (view * batch + image) * grid**2 + row * grid + column
                    if 0 < v < 1 and 0 < u < 1:
                        u = 1 - u if flips[image, 1 - view] else u
                        expected[token] = (image, v * grid - 0.5, u * grid - 0.5)
                    else:
                        assert token not in tokens[:, 0]
        assert set(expected) <= set(tokens[:, 0].tolist())
        np.testing.assert_allclose(weights.sum(1), 1, atol=1e-6)
        assert (weights >= -1e-6).all()
        for token, near, weight in zip(tokens[:, 0], tokens[:, 1:], weights, strict=True):
            if token not in expected:
                continue
            image, v, u = expected[token]
            inner = near - ((1 - view) * batch + image) * grid**2
            assert ((inner >= 0) & (inner < grid**2)).all()
            place = (weight * (inner // grid)).sum(), (weight * (inner % grid)).sum()
            np.testing.assert_allclose(place, np.clip([v, u], 0, grid - 1), atol=1e-5)


def test_features_are_sampled_as_by_torch() -> None:
    rng = np.random.default_rng(0)
    grid, batch = 6, 4
    boxes = np.concatenate([rng.integers(0, 20, (batch, 2, 2)), rng.integers(30, 60, (batch, 2, 2))], axis=2)
    flips = rng.random((batch, 2)) < 0.5
    features = torch.randn(2, batch, grid * grid, 7, generator=torch.Generator().manual_seed(0))
    tokens, weights = Correspondence(grid).matches(boxes, flips, 0)
    assert len(tokens) > 50
    sampled = (features.flatten(0, 2)[tokens[:, 1:]] * weights[..., None]).sum(1)
    maps = features[1].transpose(1, 2).reshape(batch, 7, grid, grid)
    for token, value in zip(tokens[:, 0].tolist(), sampled, strict=True):
        image, row, column = token // grid**2, token % grid**2 // grid, token % grid
        y, x = _scene_point(boxes[image, 0], flips[image, 0], row + 0.5, column + 0.5, grid)
        v = (y - boxes[image, 1, 0]) / boxes[image, 1, 2] * 2 - 1
        u = (x - boxes[image, 1, 1]) / boxes[image, 1, 3] * 2 - 1
        where = torch.tensor([[[[-u if flips[image, 1] else u, v]]]], dtype=torch.float32)
        expected = F.grid_sample(maps[image : image + 1], where, padding_mode="border", align_corners=False)
        torch.testing.assert_close(value, expected.flatten(), atol=1e-5, rtol=1e-5)


def test_equal_crops_match_every_patch_with_itself() -> None:
    boxes, flips = np.tile([3, 4, 32, 48], (2, 2, 1)), np.array([[False, False], [False, True]])
    tokens, weights = Correspondence(4).matches(boxes, flips, 1)
    assert len(tokens) == 32
    other = (tokens[:, 1:] * weights).sum(1)
    torch.testing.assert_close(other[:16], torch.arange(16.0))
    torch.testing.assert_close(other[16:].view(4, 4), torch.arange(16.0, 32.0).view(4, 4).flip(1))
