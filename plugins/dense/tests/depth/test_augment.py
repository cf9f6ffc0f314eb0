"""Crops of images and their depth: cut, turned and flipped alike."""

from __future__ import annotations

import numpy as np

from dinoskip_dense.depth.augment import augmented, recoloured
from dinoskip_dense.depth.config import DepthConfig

STILL = {"rotate": 0.0, "flip": 0.0, "colour": 0.0}


def made_up(height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """An image that says its own place, and the same as depth."""
    rows, columns = np.mgrid[:height, :width]
    image = np.stack([rows % 251, columns % 251, np.full_like(rows, 9)], -1).astype(np.uint8)
    return image, (rows % 251 + 1000 * (columns % 251)).astype(np.float32)


def test_without_changes_it_is_nyus_inside_at_full_size() -> None:
    image, depth = made_up(480, 640)
    recipe = DepthConfig(crop=(427, 565), **STILL)
    cut, own = augmented(image, depth, recipe, np.random.default_rng(0))
    np.testing.assert_array_equal(cut, image[45:472, 43:608])
    np.testing.assert_array_equal(own, depth[45:472, 43:608])


def test_image_and_depth_stay_together() -> None:
    image, depth = made_up(60, 80)
    recipe = DepthConfig(crop=(32, 40), border="none", rotate=0, colour=0)
    for seed in range(8):
        cut, own = augmented(image, depth, recipe, np.random.default_rng(seed))
        assert cut.shape == (32, 40, 3)
        np.testing.assert_array_equal(cut[..., 0] + 1000.0 * cut[..., 1], own)


def test_turning_brings_nothing_from_outside_and_keeps_measured_depths() -> None:
    image, depth = np.full((40, 40, 3), 200, np.uint8), np.full((40, 40), 3.0, np.float32)
    recipe = DepthConfig(crop=(40, 40), border="none", rotate=40, flip=0, colour=0)
    turned = [augmented(image, depth, recipe, np.random.default_rng(seed)) for seed in range(12)]
    corners = [own[0, 0] for _, own in turned]
    assert 0 in corners
    assert 3 in corners, "every second image is left as it is"
    assert {float(value) for _, own in turned for value in np.unique(own)} == {0.0, 3.0}
    cut, own = next(pair for pair in turned if pair[1][0, 0] == 0)
    assert (cut[own == 0].mean(), cut[own > 0].mean()) < (40, 190)


def test_smaller_images_are_not_measured_beyond_their_edge() -> None:
    image, depth = made_up(20, 24)
    cut, own = augmented(image, depth + 1, DepthConfig(crop=(32, 32), border="none", **STILL), np.random.default_rng(0))
    np.testing.assert_array_equal(cut[:20, :24], image)
    assert not own[20:].any()
    assert not own[:, 24:].any()
    assert (own[:20, :24] > 0).all()


def test_colours_change_as_in_the_reference() -> None:
    image, _ = made_up(8, 8)
    rng = np.random.default_rng(3)
    gamma, brightness, channels = rng.uniform(0.9, 1.1), rng.uniform(0.75, 1.25), rng.uniform(0.9, 1.1, 3)
    wanted = np.clip(image.astype(float) ** gamma * brightness * channels, 0, 255)
    have = recoloured(image, np.random.default_rng(3))
    assert np.abs(have - wanted).max() <= 0.51
