"""Augmentations of heads, drawn thousands of times: they raise nothing, and give finite pixels of their shape."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from dinoskip_dense.depth import augment as depth
from dinoskip_dense.depth.config import DepthConfig
from dinoskip_dense.geometry import LabelledNormals
from dinoskip_dense.normals import augment as normals
from dinoskip_dense.normals.config import NormalsConfig
from tests.data.test_every_draw import SIZE, picture


def depths(indices: np.ndarray) -> None:
    recipe = DepthConfig(crop=(SIZE, SIZE))
    for index in indices.tolist():
        rng, image = np.random.default_rng(index), picture(index)
        crop, metres = depth.augmented(image, rng.random(image.shape[:2]).astype(np.float32), recipe, rng)
        assert crop.shape == (*metres.shape, 3) == (SIZE, SIZE, 3)


def surfaces(indices: np.ndarray) -> None:
    recipe = NormalsConfig()
    for index in indices.tolist():
        rng, image = np.random.default_rng(index), picture(index)
        own = LabelledNormals(image, rng.normal(size=image.shape).astype(np.float32), rng.random(image.shape[:2]) < 0.9)
        crop, _, _ = normals.augmented(own, recipe, rng)
        assert crop.dtype == torch.uint8
        assert crop.shape[1] == crop.shape[2]


AUGMENTATIONS: dict[str, Callable[[np.ndarray], None]] = {"depth": depths, "normals": surfaces}


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_four_hundred_draws(name: str) -> None:
    AUGMENTATIONS[name](np.arange(400))


@pytest.mark.slow
@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_twenty_thousand_draws(name: str) -> None:
    AUGMENTATIONS[name](np.arange(20_000))
