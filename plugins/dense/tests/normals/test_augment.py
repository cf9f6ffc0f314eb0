"""Squares of images and their normals: cut, enlarged and coloured; nothing is turned."""

from __future__ import annotations

import numpy as np
import torch

from dinoskip_dense.geometry import LabelledNormals
from dinoskip_dense.normals.augment import augmented, jittered, square
from dinoskip_dense.normals.config import NormalsConfig


def made_up(height: int = 12, width: int = 20) -> LabelledNormals:
    """An image whose colours say what its normals are."""
    rows, columns = np.mgrid[:height, :width]
    image = np.stack([rows, columns, np.zeros_like(rows)], -1).astype(np.uint8)
    normals = np.stack([rows + 1, columns, np.zeros_like(rows)], -1).astype(np.float32)
    return LabelledNormals(image, normals, columns % 5 != 0)


def test_the_square_in_the_middle() -> None:
    one = made_up()
    image, normals, valid = square(one)
    assert image.shape == (3, 12, 12)
    np.testing.assert_array_equal(image.permute(1, 2, 0).numpy(), one.image[:, 4:16])
    np.testing.assert_array_equal(normals.permute(1, 2, 0).numpy(), one.normals[:, 4:16])
    np.testing.assert_array_equal(valid.numpy(), one.valid[:, 4:16])
    one.normals[3, 7] = 0
    assert not square(one)[2][3, 3], "a pixel without a normal is not known"


def test_parts_keep_colours_with_their_normals_and_their_direction() -> None:
    recipe, sides = NormalsConfig(jitter=0.0, resized=1.0), set()
    for seed in range(10):
        image, normals, valid = augmented(made_up(), recipe, np.random.default_rng(seed))
        assert image.shape == normals.shape == (3, 12, 12)
        torch.testing.assert_close(normals[:2], image[:2].float() + torch.tensor([1.0, 0.0])[:, None, None])
        torch.testing.assert_close(valid, image[1] % 5 != 0)
        assert bool((image[1].diff(dim=1).int() >= 0).all())
        sides.add(len(image[0].unique()))
    assert min(sides) >= 8, "at least half of the area"
    assert len(sides) > 1


def test_colours_change_as_little_as_said() -> None:
    image = torch.full((3, 4, 4), 128, dtype=torch.uint8)
    image[0] = 160
    changed = [jittered(image, np.random.default_rng(seed)) for seed in range(6)]
    assert all(one.dtype == torch.uint8 for one in changed)
    assert len({tuple(one[:, 0, 0].tolist()) for one in changed}) == 6
    assert max(int((one.int() - image.int()).abs().max()) for one in changed) < 110
