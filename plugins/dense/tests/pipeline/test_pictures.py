"""Depth and normals in the gallery: predicted beside true maps, in colours that mean the same everywhere."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dinoskip.pipeline.gallery.settings import GallerySettings
from dinoskip.pipeline.gallery.surfaces import surface_images, surface_maps
from dinoskip.pipeline.stage import Task
from dinoskip.pipeline.study import build_nodes, load_study
from dinoskip_dense.depth.layer import depth_colours
from dinoskip_dense.normals.layer import in_the_middle, normal_colours
from dinoskip_dense.sets.rooms import RoomsConfig
from tests.helpers.study import TINY
from visualize.gallery.config import GalleryConfig
from visualize.palette import sequential

CONFIG = RoomsConfig(images=4, size=32, val_fraction=0.5)


def test_near_is_pale_far_is_dark_and_not_measured_is_grey() -> None:
    colours = depth_colours(np.array([[0.2, 0.5, 5**0.5, 10.0, 40.0, 0.0, np.nan]]))
    ramp = sequential(256)
    assert colours[0, [0, 1, 3, 4]].tolist() == ramp[[255, 255, 0, 0]].tolist()
    assert np.abs(colours[0, 2].astype(int) - ramp[128]).max() < 4, "halfway by ratio"
    assert colours[0, 5:].tolist() == [[128] * 3] * 2


def test_axes_are_colours() -> None:
    normals = np.array([[[1, 0, 0], [0, -1, 0], [0, 0, 0]]], np.float32)
    assert normal_colours(normals).tolist() == [[[255, 128, 128], [128, 0, 128], [128, 128, 128]]]
    square = np.zeros((6, 6, 3), np.uint8)
    assert in_the_middle(square, 480, 640).shape == (6, 8, 3)
    assert in_the_middle(square, 64, 32).shape == (12, 6, 3)
    assert in_the_middle(square, 5, 5).shape == (6, 6, 3)


def test_saved_maps_stand_beside_the_truth(tmp_path: Path) -> None:
    CONFIG.generate(tmp_path / "data")
    opened = CONFIG.open_depth(tmp_path / "data", "val", None)
    for layer, shape in (("depth", (2, 8, 8)), ("normals", (2, 3, 8, 8))):
        (tmp_path / layer).mkdir()
        values = np.random.default_rng(0).uniform(0.5, 1, shape).astype(np.float16)
        with open(tmp_path / layer / "maps.npz", "wb") as stream:
            np.savez(stream, ids=np.array(opened.ids), **{"block2": values, "block1+2": values})
    inputs = {"data": tmp_path / "data", "depth:net": tmp_path / "depth", "normals:net": tmp_path / "normals"}
    task = Task(GallerySettings(GalleryConfig(), "val"), {"config": CONFIG}, inputs, tmp_path, "cpu", 1)
    pictures = surface_maps(task, "net", [opened.ids[1], "another"])
    assert {layer: list(by_block) for layer, by_block in pictures.items()} == {"depth": [2], "normals": [2]}
    for layer in ("depth", "normals"):
        assert list(pictures[layer][2]) == [opened.ids[1]]
        predicted, true = pictures[layer][2][opened.ids[1]]
        assert predicted.shape[-2:] == (8, 8)
        assert true.shape[:2] == (32, 32)
        assert len(np.unique(true)) > 1
    assert surface_maps(task, "other", opened.ids) == {}


def test_depth_of_another_data_set_has_images_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(TINY)
    rooms = CONFIG.model_dump(exclude_defaults=True) | {"kind": "rooms"}
    asked = [f"data.rooms={json.dumps(rooms)}", "evaluate.depth={datasets: [rooms]}", "gallery.first=1"]
    (gallery,) = (node for node in build_nodes(*load_study(tmp_path / "tiny.yaml", asked)) if node.id == "gallery")
    assert gallery.plain["dataset"]["kind"] == "scenes"
    assert gallery.inputs["data depth"] == "data/rooms"
    assert gallery.inputs["depth:skip-adamw"] == "depth/skip-adamw/ep1/rooms"
    (tmp_path / "depth").mkdir()
    CONFIG.generate(tmp_path / "data")
    opened = CONFIG.open_depth(tmp_path / "data", "test", None)
    values = np.random.default_rng(0).uniform(0.5, 9, (2, 8, 8)).astype(np.float16)
    with open(tmp_path / "depth" / "maps.npz", "wb") as stream:
        np.savez(stream, ids=np.array(opened.ids), block2=values)
    inputs = {"data depth": tmp_path / "data", "depth:net": tmp_path / "depth"}
    task = Task(gallery.settings, gallery.runtime, inputs, tmp_path, "cpu", 1)
    (image,) = surface_images(task)
    assert (image.id, image.path, image.layer) == (f"depth {opened.ids[0]}", opened.path(0), "depth")
    ((name, (predicted, _)),) = surface_maps(task, "net", ["scene"])["depth"][2].items()
    assert name == image.id, "the gallery's own images are not looked for there"
    assert np.array_equal(predicted, values[0])
    without = [node for node in build_nodes(*load_study(tmp_path / "tiny.yaml", asked[:1])) if node.id == "gallery"]
    assert "surfaces" not in without[0].plain, "the key of a study without depth is what it was"


def test_the_gallery_shows_the_split_that_is_scored_and_reads_its_maps(tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(TINY)
    asked = [
        f"data.rooms={json.dumps({'kind': 'rooms', 'images': 4, 'size': 32})}", "gallery.dataset=rooms",
        "evaluate.depth={datasets: [rooms], val_split: val}", "evaluate.normals.datasets=[rooms]",
    ]  # fmt: skip
    nodes = {node.id: node for node in build_nodes(*load_study(tmp_path / "tiny.yaml", asked))}
    gallery = nodes["gallery"]
    assert gallery.settings.split == "val"
    assert {role.partition(":")[0] for role in gallery.inputs} >= {"depth", "normals", "weights"}
    with pytest.raises(KeyError):
        _ = gallery.inputs["probe:skip-adamw"]
