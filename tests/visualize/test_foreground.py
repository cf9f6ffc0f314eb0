"""The foreground by PCA, and tokens of outlying norm."""

from __future__ import annotations

import numpy as np
import pytest

from visualize.foreground import border_sign, count_outliers, find_foreground, outliers


def scene(rng: np.random.Generator, share: float, grid: int = 12, channels: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """Tokens (h, w, C) with an object in the middle that takes ``share`` of the side, and the object's mask."""
    mask = np.zeros((grid, grid), bool)
    margin = round(grid * (1 - share) / 2)
    mask[margin : grid - margin, margin : grid - margin] = True
    tokens = 0.02 * rng.standard_normal((grid, grid, channels))
    tokens[mask, 0] += 1.0
    tokens[mask, 1] += np.linspace(-0.3, 0.3, mask.sum())  # parts of the object
    return tokens, mask


@pytest.mark.parametrize("share", [0.3, 0.8])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_objects_are_found_small_or_large_whatever_the_features_sign(share: float, sign: float) -> None:
    """A large object is the majority: the side with the long tail is then the background."""
    scenes = [scene(np.random.default_rng(seed), share) for seed in range(3)]
    found = find_foreground([sign * tokens for tokens, _ in scenes])
    for mask, (_, truth) in zip(found.masks, scenes, strict=True):
        assert (mask == truth).all()
    for colours, mask in zip(found.colours, found.masks, strict=True):
        assert colours.shape == (*mask.shape, 3)
        assert (colours[~mask] == 0).all()
    inside = np.concatenate([colours[mask] for colours, mask in zip(found.colours, found.masks, strict=True)])
    assert len(np.unique(inside, axis=0)) > 10, "the parts have colours of their own"


def test_the_same_part_has_the_same_colour_in_two_images_of_other_sizes() -> None:
    tokens, _ = scene(np.random.default_rng(0), 0.5)
    small = tokens[2:-2, 2:-2]
    found = find_foreground([tokens, small])
    assert (found.colours[0][2:-2, 2:-2] == found.colours[1]).all()


def test_tokens_that_are_all_alike_have_no_foreground() -> None:
    found = find_foreground([np.ones((4, 4, 5))])
    assert not found.masks[0].any()
    assert not found.colours[0].any()


def test_the_border_rule_of_grids_without_an_inside() -> None:
    assert border_sign([np.arange(4.0).reshape(2, 2)]) == 1.0
    inner = np.pad(np.ones((2, 2)), 1)
    assert (border_sign([inner]), border_sign([-inner])) == (1.0, -1.0)


def test_outliers_are_counted_by_their_norm() -> None:
    tokens = np.ones((5, 4, 3))
    tokens[0, 0] *= 10
    [found] = outliers([tokens])
    assert found.sum() == 1
    assert found[0, 0]
    count = count_outliers([tokens, np.ones((2, 2, 3))])
    assert count.share == pytest.approx(1 / 24)
    assert count.norm == pytest.approx(10 * 3**0.5)
    assert count.median == pytest.approx(3**0.5)
    assert count_outliers([np.ones((2, 2, 3))]).norm == 0
