"""Labels of photographs that EXIF turns: upright or as stored, by sizes, by edges, by a setting."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dinoskip.data.sets import CocoJsonConfig, MasksConfig, VocConfig, open_labels
from dinoskip.data.sets.check import check
from dinoskip.data.sets.labels import DETECTION, SEGMENTATION
from dinoskip.errors import DataError
from dinoskip.io.images import exif_orientation, stored_geometry, turn_upright
from dinoskip.pipeline.stages.external import targets_hash

SHARED = Path(__file__).parents[2].parent / "shared"
TURN_BACK = {6: 8, 8: 6}  # the orientation that undoes another; all others undo themselves


def photograph(seed: int, *, square: bool, plain: bool) -> tuple[np.ndarray, tuple[int, int, int, int]]:
    """A picture as it is seen, with a bright object off its centre, or without anything; and the object's box."""
    rng = np.random.default_rng(seed)
    height, width = (48, 48) if square else (48, 64)
    picture = np.full((height, width, 3), rng.integers(20, 90, 3), np.float64)
    if plain:
        return picture.astype(np.uint8), (4, 5, 22, 18)
    picture += np.linspace(0, 25, width)[None, :, None]
    x, y = int(rng.integers(4, 8)), int(rng.integers(4, 7))
    box = (x, y, x + 18, y + 13)
    picture[box[1] : box[3], box[0] : box[2]] = (220, 60, 40)
    return np.clip(picture + rng.normal(0, 3, picture.shape), 0, 255).astype(np.uint8), box


def turned_back(upright: np.ndarray, orientation: int) -> np.ndarray:
    """Return the stored form of a picture that looks like ``upright`` with this orientation."""
    return turn_upright(upright, TURN_BACK.get(orientation, orientation))


def write_photo(path: Path, upright: np.ndarray, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(turned_back(upright, orientation)).save(path, exif=exif, quality=95)


def write_masks(
    root: Path,
    orientation: int,
    upright: Callable[[int], bool],
    *,
    square: bool = False,
    plain: bool = False,
    n: int = 4,
) -> MasksConfig:
    """``n`` photographs that EXIF turns, with masks drawn as said, and one that it does not turn."""
    for folder in ("images/val", "masks/val"):
        (root / folder).mkdir(parents=True)
    (root / "classes.txt").write_text("background\nobject\n")
    for number in range(n + 1):
        seen, (x1, y1, x2, y2) = photograph(number, square=square, plain=plain)
        labels = np.zeros(seen.shape[:2], np.uint8)
        labels[y1:y2, x1:x2] = 1
        its = orientation if number < n else 1
        write_photo(root / f"images/val/{number}.jpg", seen, its)
        Image.fromarray(labels if upright(number) else turned_back(labels, its)).save(root / f"masks/val/{number}.png")
    return MasksConfig(root=str(root))


@pytest.mark.parametrize("orientation", range(2, 9))
@pytest.mark.parametrize("square", [False, True])
@pytest.mark.parametrize("upright", [False, True])
def test_masks_lie_on_the_objects_of_their_photographs(
    tmp_path: Path, orientation: int, square: bool, upright: bool
) -> None:
    config = write_masks(tmp_path, orientation, lambda _: upright, square=square)
    dataset = open_labels(SEGMENTATION, config, "val")
    for index in range(len(dataset)):
        _, (x1, y1, x2, y2) = photograph(index, square=square, plain=False)
        expected = np.zeros_like(dataset.label(index))
        expected[y1:y2, x1:x2] = 1
        assert (dataset.label(index) == expected).all()
    told = orientation >= 5 and not square
    assert bool(dataset.labels_by) is not told
    assert dataset.part([0, 2]).labels_upright == dataset.labels_upright == (upright and not told)


def test_what_no_photograph_shows_is_refused_and_read_as_the_setting_says(tmp_path: Path) -> None:
    config = write_masks(tmp_path, 3, lambda _: True, plain=True)
    with pytest.raises(DataError) as caught:
        open_labels(SEGMENTATION, config, "val")
    assert "label_orientation" in str(caught.value)
    assert "\n" not in str(caught.value)
    row = next(row for row in check(config) if row.split == "val")
    assert any("label_orientation" in fault for fault in row.faults)
    upright, stored = (
        open_labels(SEGMENTATION, config.model_copy(update={"label_orientation": way}), "val").label(0)
        for way in ("upright", "stored")
    )
    assert (upright[::-1, ::-1] == stored).all()
    assert not (upright == stored).all()


def test_a_mixture_is_refused_with_one_of_each(tmp_path: Path) -> None:
    config = write_masks(tmp_path, 3, lambda number: number % 2 == 0, n=6)
    with pytest.raises(DataError, match=r"label_orientation") as caught:
        open_labels(SEGMENTATION, config, "val")
    assert "jpg" in str(caught.value)


def test_sizes_of_others_decide_where_photographs_do_not(tmp_path: Path) -> None:
    config = write_masks(tmp_path, 6, lambda _: True, plain=True)
    write_photo(tmp_path / "images/val/2.jpg", photograph(2, square=False, plain=True)[0], 3)
    dataset = open_labels(SEGMENTATION, config, "val")
    assert dataset.labels_upright
    assert "sizes" in dataset.labels_by


def test_without_orientation_nothing_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = write_masks(tmp_path, 1, lambda _: True, plain=True)
    monkeypatch.setattr("dinoskip.data.orientation.read_image", lambda *_, **__: pytest.fail("decoded"))
    dataset = open_labels(SEGMENTATION, config, "val")
    assert (dataset.labels_upright, dataset.labels_by) == (False, "")


def test_keys_change_only_where_labels_are_taken_otherwise_than_before(tmp_path: Path) -> None:
    stored = write_masks(tmp_path / "stored", 3, lambda _: False)
    upright = write_masks(tmp_path / "upright", 3, lambda _: True)
    for config, same in ((stored, True), (upright, False)):
        as_before = targets_hash(config.model_copy(update={"label_orientation": "stored"}), "segmentation", "val")
        assert (targets_hash(config, "segmentation", "val") == as_before) is same


def write_boxes(root: Path, orientation: int, *, upright: bool, sized: bool, voc: bool) -> Any:
    """Ten photographs with one box each as COCO's JSON or VOC's XML, with or without the size of the picture."""
    images, annotations = [], []
    photos = root / "JPEGImages" if voc else root
    photos.mkdir(parents=True)
    for folder in ("Annotations", "ImageSets/Main") if voc else ():
        (root / folder).mkdir(parents=True)
    for number in range(10):
        seen, (x1, y1, x2, y2) = photograph(number, square=False, plain=False)
        write_photo(photos / f"{number}.jpg", seen, orientation)
        area = np.zeros(seen.shape[:2], np.uint8)
        area[y1:y2, x1:x2] = 1
        area = area if upright else turned_back(area, orientation)
        rows, columns = np.flatnonzero(area.any(1)), np.flatnonzero(area.any(0))
        x1, y1, x2, y2 = (int(v) for v in (columns[0], rows[0], columns[-1] + 1, rows[-1] + 1))
        size = dict(zip(("height", "width"), area.shape, strict=True)) if sized else {}
        images.append({"id": number, "file_name": f"{number}.jpg", **size})
        annotations.append({"id": number, "image_id": number, "category_id": 1, "bbox": [x1, y1, x2 - x1, y2 - y1]})
        if voc:
            sides = "".join(f"<{key}>{value}</{key}>" for key, value in size.items())
            (root / f"Annotations/{number}.xml").write_text(
                f"<annotation><size>{sides}</size><object><name>dog</name><bndbox><xmin>{x1 + 1}</xmin>"
                f"<ymin>{y1 + 1}</ymin><xmax>{x2}</xmax><ymax>{y2}</ymax></bndbox></object></annotation>"
            )
    if voc:
        (root / "ImageSets/Main/val.txt").write_text("\n".join(map(str, range(10))))
        return VocConfig(root=str(root))
    content = {"images": images, "annotations": annotations, "categories": [{"id": 1, "name": "dog"}]}
    (root / "annotations.json").write_text(json.dumps(content))
    return CocoJsonConfig(root=str(root))


@pytest.mark.parametrize("orientation", [2, 3, 4, 6])
@pytest.mark.parametrize("upright", [False, True])
@pytest.mark.parametrize("sized", [False, True])
@pytest.mark.parametrize("voc", [False, True])
def test_boxes_lie_on_the_objects_of_their_photographs(
    tmp_path: Path, orientation: int, upright: bool, sized: bool, voc: bool
) -> None:
    config = write_boxes(tmp_path / "set", orientation, upright=upright, sized=sized, voc=voc)
    dataset = open_labels(DETECTION, config, "val")
    for index in range(len(dataset)):
        expected = photograph(int(Path(dataset.path(index)).stem), square=False, plain=False)[1]
        assert dataset.boxes(index).tolist() == [list(map(float, expected))]


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "tif"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_quick_look_at_a_header_says_what_the_decoder_says(tmp_path: Path, suffix: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    exif[0x010E] = "text " * 2000  # a long header
    path = tmp_path / f"a.{suffix}"
    Image.fromarray(np.zeros((8, 12, 3), np.uint8)).save(path, exif=exif)
    assert exif_orientation(path) == stored_geometry(path)[1] == orientation


@pytest.mark.skipif(not (SHARED / "cases").is_dir(), reason="../shared/cases is not here")
def test_the_shared_cases_are_read_upright() -> None:
    masks = MasksConfig(root=str(SHARED / "cases/masks_upright_exif3"))
    boxes = CocoJsonConfig(root=str(SHARED / "cases/boxes_upright_exif3/upright3"))
    for dataset in (open_labels(SEGMENTATION, masks, "val"), open_labels(DETECTION, boxes, "all")):
        assert dataset.labels_upright
