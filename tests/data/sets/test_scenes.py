from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage

from dinoskip.data import ScenesConfig, voc_detection, voc_segmentation
from dinoskip.data.segmentation import voc_palette
from dinoskip.data.sets.scenes import draw_scene
from dinoskip.data.sprites import KINDS, PHOTOS, photo_path
from dinoskip.io.images import read_image
from dinoskip.runtime.cores import cores_counted_as

CONFIG = ScenesConfig(images=12, size=96, seed=3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return CONFIG.generate(tmp_path_factory.mktemp("scenes"))


def test_photographs_come_with_the_packages() -> None:
    for name in PHOTOS:
        assert photo_path(name).is_file()


def test_layout_is_voc(folder: Path) -> None:
    train, val = voc_segmentation(folder.parent, "train"), voc_segmentation(folder.parent, "val")
    assert (len(train), len(val)) == (9, 3)
    assert train.class_names == ("background", "flower", "coin", "vase", "horse", "cup", "pavilion")
    assert not set(train.ids) & set(val.ids)
    with Image.open(train.label_paths[0]) as mask:
        assert mask.mode == "P"
        assert mask.getpalette() == voc_palette().ravel().tolist()
    assert read_image(train.path(0)).shape == (96, 96, 3)


def test_masks_boxes_and_borders_agree(folder: Path) -> None:
    masks = voc_segmentation(folder.parent, "trainval")
    objects = voc_detection(folder.parent, "trainval", 2012)
    assert masks.ids == objects.ids
    for index in range(len(masks)):
        labels = masks.label(index)
        names = {masks.class_names[value] for value in np.unique(labels) if value not in (0, 255)}
        assert names == set(objects.box_labels(index))
        assert KINDS[index % 6].name in names  # the first object's class goes round
        covered = np.zeros_like(labels, dtype=bool)
        for x1, y1, x2, y2 in objects.boxes(index).astype(int):
            assert 0 <= x1 < x2 <= 96
            assert 0 <= y1 < y2 <= 96
            covered[y1:y2, x1:x2] = True
        assert not ((labels != 0) & (labels != 255) & ~covered).any()
        assert not ((labels == 255) & ~ndimage.binary_dilation(covered, np.ones((5, 5)))).any()
        assert 0.02 < (labels == 255).sum() / covered.sum() < 0.6


def test_files_do_not_depend_on_how_many_cores_draw_them(tmp_path: Path) -> None:
    files = []
    for cores in (1, 3):
        with cores_counted_as(cores):
            made = CONFIG.generate(tmp_path / str(cores))
        files.append({path.relative_to(made): path.read_bytes() for path in made.rglob("*") if path.is_file()})
    assert len(files[0]) == 3 * CONFIG.images + 8  # image, mask and annotation; lists of two kinds, classes, recipe
    assert files[0] == files[1]


@pytest.mark.parametrize("objects", ["cutouts", "shapes"])
def test_single_object_box_is_tight(objects: Literal["cutouts", "shapes"]) -> None:
    config = ScenesConfig(images=8, size=128, max_objects=1, seed=1, objects=objects)
    for number in range(8):
        scene = draw_scene(config, number)
        ((_, x1, y1, x2, y2),) = scene.boxes
        ys, xs = np.nonzero(scene.labels)  # object and its rim, which reaches two pixels further
        assert abs(xs.min() - x1) <= 2
        assert abs(ys.min() - y1) <= 2
        assert abs(xs.max() + 1 - x2) <= 2
        assert abs(ys.max() + 1 - y2) <= 2


@pytest.mark.parametrize("objects", ["cutouts", "shapes"])
def test_objects_stand_out_from_their_background(objects: Literal["cutouts", "shapes"]) -> None:
    """The mean colour inside differs from that just outside, else nothing could find or learn them."""
    config = ScenesConfig(images=60, size=96, max_objects=1, seed=0, objects=objects)
    gaps = []
    for number in range(60):
        scene = draw_scene(config, number)
        inside = (scene.labels > 0) & (scene.labels < 255)
        ring = ndimage.binary_dilation(inside, iterations=10) & (scene.labels == 0)
        gaps.append(np.abs(scene.image[inside].mean(axis=0) - scene.image[ring].mean(axis=0)).max())
    assert np.median(gaps) > 40
    assert np.quantile(gaps, 0.1) > 15


def test_cutouts_are_the_default_and_no_part_of_the_recipe(tmp_path: Path) -> None:
    recipe = (ScenesConfig(images=4, size=64).generate(tmp_path / "old") / "scenes.json").read_text()
    assert '"objects"' not in recipe  # folders composed before there were shapes are these
    drawn = ScenesConfig(images=4, size=64, objects="shapes").generate(tmp_path / "new")
    assert "shapes" in (drawn / "scenes.json").read_text()
    assert (drawn / "classes.txt").read_text().split() == ["disc", "ring", "star", "triangle", "cross", "comb"]


def test_no_scene_is_without_an_object() -> None:
    config = ScenesConfig(images=120, size=64, max_objects=1, objects="shapes")
    assert all(len(draw_scene(config, number).boxes) == 1 for number in range(120))


@pytest.mark.slow  # 480 pictures
def test_colour_says_nothing_of_a_shape() -> None:
    """Mean colours of objects of one class spread as those of all; of cut-outs classes have colours of their own."""

    def share_between_classes(objects: Literal["cutouts", "shapes"]) -> float:
        config = ScenesConfig(images=240, size=64, max_objects=1, objects=objects)
        scenes = [draw_scene(config, number) for number in range(240)]
        means = np.array([one.image[(one.labels > 0) & (one.labels < 255)].mean(0) for one in scenes])
        between = np.array([means[label::6].mean(0) for label in range(6)]).var(0).sum()
        return float(between / means.var(0).sum())

    assert share_between_classes("shapes") < 0.08  # 6 classes of 40 draws of one distribution: 0.025 expected
    assert share_between_classes("cutouts") > 0.4
