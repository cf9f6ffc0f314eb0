"""The composed rooms: depth and normals agree with each other and with the planes, the layout is NYU's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import dinoskip.data.sets.check as checks
from dinoskip.data.sets import open_images, open_labels
from dinoskip.errors import ConfigError, DataError
from dinoskip_dense.labels import DEPTH, NORMALS
from dinoskip_dense.sets.rooms import RoomsConfig, draw_room
from tests.helpers.signatures import composed_and_judged

CONFIG = RoomsConfig(images=5, size=48, val_fraction=0.4, seed=3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return CONFIG.generate(tmp_path_factory.mktemp("rooms"))


@pytest.mark.parametrize("number", range(6))
def test_normals_are_those_of_the_depth(number: int) -> None:
    """Cross products of neighbouring points in space, where all belong to one plane, by the pinhole model."""
    config = RoomsConfig(size=64, max_objects=2, seed=1)
    room = draw_room(config, number)
    assert room.depth.min() > 0.3
    assert room.depth.max() < 10
    np.testing.assert_allclose(np.linalg.norm(room.normals, axis=-1), 1, atol=1e-12)
    here, above, beside = room.normals[1:, 1:], room.normals[:-1, 1:], room.normals[1:, :-1]
    same = ((here == above) & (here == beside)).all(-1)
    errors = []
    for focal in np.linspace(0.8, 1.2, 401):  # the focal length is the room's own secret: one of them fits all planes
        at = ((np.arange(64) + 0.5) / 64 - 0.5) / focal
        x, y = np.meshgrid(at, at)
        points = np.stack([x, y, np.ones_like(x)], -1) * room.depth[..., None]
        along, down = points[1:, 1:] - points[1:, :-1], points[1:, 1:] - points[:-1, 1:]
        cross = np.cross(along, down)
        cross /= np.maximum(np.linalg.norm(cross, axis=-1, keepdims=True), 1e-12)
        cross *= -np.sign((cross * points[1:, 1:]).sum(-1, keepdims=True))
        cosine = (cross * room.normals[1:, 1:]).sum(-1)[same]
        errors.append(np.quantile(np.degrees(np.arccos(np.clip(cosine, -1, 1))), 0.9))
    assert min(errors) < 0.2  # degrees; the rest are seams between objects that face the same way


def test_stored_depth_and_normals_are_those_drawn(folder: Path) -> None:
    depth, normals = open_labels(DEPTH, CONFIG, "val", folder.parent), open_labels(NORMALS, CONFIG, "val", folder)
    assert depth.ids == normals.ids == ("rooms/rgb_00003.jpg", "rooms/rgb_00004.jpg")
    assert depth.split == "val"
    assert open_images(CONFIG, folder, split="val").ids == depth.ids
    for index, number in enumerate((3, 4)):
        room = draw_room(CONFIG, number)
        assert np.abs(depth.depth(index) - room.depth).max() <= 5.1e-4
        read = normals.read(index)
        np.testing.assert_allclose(read.normals, room.normals, atol=1e-7)
        assert read.valid.all()
        assert np.abs(read.image.astype(int) - room.image).mean() < 6  # JPEG
    assert len(open_labels(DEPTH, CONFIG.model_copy(update={"limit": 1}), "train", folder)) == 1


def test_check_counts_and_names_what_is_missing(folder: Path, tmp_path: Path) -> None:
    rows = checks.check(CONFIG, folder)
    assert [(row.task, row.split, row.found, row.expected, row.ok) for row in rows] == [
        (task, split, count, count, True)
        for task in ("depth", "normals") for split, count in (("train", 3), ("val", 2))
    ]  # fmt: skip
    copy = CONFIG.generate(tmp_path)
    (copy / "rooms" / "normals_00003.npz").write_bytes(b"no arrays")
    (copy / "rooms" / "sync_depth_00004.png").unlink()
    depth, normals = (next(row for row in checks.check(CONFIG, copy) if (row.task, row.split) == (task, "val"))
                      for task in ("depth", "normals"))  # fmt: skip
    assert depth.fault_count == 1
    assert "sync_depth_00004.png: no such file" in depth.faults[0]
    assert normals.fault_count == 2
    assert "normals_00003.npz: not a readable file of arrays" in " ".join(normals.faults)


def test_unknown_splits_and_no_folder_are_said(folder: Path) -> None:
    with pytest.raises(DataError, match="there is no split 'dev'"):
        open_labels(DEPTH, CONFIG, "dev", folder)
    with pytest.raises(ConfigError, match=r"rooms: .*folder"):
        open_labels(DEPTH, CONFIG, "val")


def test_labels_mean_what_the_settings_say(tmp_path: Path) -> None:
    assert not composed_and_judged(tmp_path / "set", kind="rooms", images=8, size=64)
