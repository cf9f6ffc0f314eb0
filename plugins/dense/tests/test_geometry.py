"""Depth maps and normals belong to the stored pixels of their image."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dinoskip.errors import DataError
from dinoskip_dense.geometry import DepthDataset, LabelledNormals, NormalsDataset


def dataset(folder: Path, depth: np.ndarray, image_shape: tuple[int, int] = (4, 6)) -> DepthDataset:
    Image.fromarray(np.zeros((*image_shape, 3), np.uint8)).save(folder / "a.png")
    Image.fromarray(depth).save(folder / "a_depth.png")
    return DepthDataset("x", "test", ("a.png",), (folder / "a.png",), (folder / "a_depth.png",))


def test_depth_is_in_metres_and_zero_where_not_measured(tmp_path: Path) -> None:
    values = np.arange(24, dtype=np.uint16).reshape(4, 6) * 2500
    metres = dataset(tmp_path, values).depth(0)
    assert metres.dtype == np.float32
    np.testing.assert_allclose(metres, values / 1000, rtol=1e-7)
    assert metres[0, 0] == 0
    assert metres.max() > 32, "not read as signed"


def test_depth_of_another_size_or_of_8_bits_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a_depth\.png: depth map is 4×6 pixels, its image a\.png 6×4"):
        dataset(tmp_path, np.ones((6, 4), np.uint16)).depth(0)
    with pytest.raises(DataError, match=r"a_depth\.png: a depth map must be a grey image of 16 bits, this one is L"):
        dataset(tmp_path, np.ones((4, 6), np.uint8)).depth(0)


def test_part_keeps_images_with_their_maps(tmp_path: Path) -> None:
    paths = tuple(tmp_path / name for name in "abc")
    whole = DepthDataset("x", "test", ("a", "b", "c"), paths, paths[::-1])
    part = whole.part([2, 0])
    assert (part.ids, part.image_paths, part.depth_paths) == (("c", "a"), (paths[2], paths[0]), (paths[0], paths[2]))


def test_normals_that_do_not_fit_are_named() -> None:
    one = LabelledNormals(np.zeros((4, 6, 3), np.uint8), np.zeros((4, 5, 3), np.float32), np.ones((4, 6), bool))
    normals = NormalsDataset("x", "test", ("a",), (Path("a"),), (Path("n"),), lambda *_: one, lambda _: one.valid)
    with pytest.raises(DataError, match=r"n: normals \(4, 5, 3\) do not fit"):
        normals.read(0)
    assert normals.part([0]).ids == ("a",)
