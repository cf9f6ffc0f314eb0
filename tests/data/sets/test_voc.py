from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dinoskip.data import dominant_labels, voc_detection, voc_segmentation
from dinoskip.data.segmentation import voc_palette
from dinoskip.data.sets.voc import VOC_CLASSES, read_list
from dinoskip.errors import DataError

SHARED = Path(__file__).parents[3].parent / "shared"


def test_palette_is_the_published_one() -> None:
    palette = voc_palette()
    known = {0: (0, 0, 0), 1: (128, 0, 0), 2: (0, 128, 0), 3: (128, 128, 0), 8: (64, 0, 0), 12: (64, 0, 128),
             15: (192, 128, 128), 20: (0, 64, 128), 255: (224, 224, 192)}  # fmt: skip
    assert {value: tuple(palette[value].tolist()) for value in known} == known
    assert len({tuple(row) for row in palette.tolist()}) == 256


@pytest.mark.parametrize("part", ["", "VOC2012"])
def test_segmentation_set(voc_tree: Path, part: str) -> None:
    dataset = voc_segmentation(voc_tree / part, "train")
    assert (dataset.name, dataset.split, dataset.ids, dataset.num_classes) == ("voc2012", "train", ("a1", "a2"), 21)
    assert dataset.class_names == ("background", *VOC_CLASSES)
    labels = dataset.label(0)
    assert (labels.shape, labels.dtype) == ((40, 48), np.uint8)
    assert np.unique(labels).tolist() == [0, 12, 255]
    assert dataset.path(1) == voc_tree / "VOC2012" / "JPEGImages" / "a2.jpg"
    assert dataset.palette.shape == (256, 3)
    augmented = voc_segmentation(voc_tree / part, "trainaug")
    assert "SegmentationClassAug" in str(augmented.label_paths[0])
    assert 255 not in augmented.label(0)


def test_own_classes(voc_tree: Path) -> None:
    (voc_tree / "VOC2012" / "classes.txt").write_text("cat\ndog\n")
    assert voc_segmentation(voc_tree, "val").class_names == ("background", "cat", "dog")
    with pytest.raises(DataError, match=r"a3.png: label value 12 \(375 pixels\) is outside the 3 classes"):
        voc_segmentation(voc_tree, "val").label(0)
    (voc_tree / "VOC2012" / "classes.txt").write_text("cat\ncat\n")
    with pytest.raises(DataError, match=r"classes.txt: expected 1 to 254 different"):
        voc_segmentation(voc_tree, "val")


def test_mask_that_does_not_fit_is_named(voc_tree: Path) -> None:
    Image.new("P", (48, 41)).save(voc_tree / "VOC2012" / "SegmentationClass" / "a3.png")
    with pytest.raises(DataError, match=r"a3.png: mask is 48×41 pixels, its image a3.jpg 48×40"):
        voc_segmentation(voc_tree, "val").label(0)
    Image.new("RGB", (48, 40)).save(voc_tree / "VOC2012" / "SegmentationClass" / "a3.png")
    with pytest.raises(DataError, match=r"a3.png: a mask must be a palette or grey image"):
        voc_segmentation(voc_tree, "val").label(0)


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        ("JPEGImages", "no VOC2012 here: expected VOC2012/JPEGImages"),
        ("ImageSets/Segmentation/val.txt", "val.txt: no such image list for split 'val' .there are train"),
        ("SegmentationClass", "SegmentationClass: no such folder"),
        ("SegmentationClass/a3.png", "a3.png: missing, but the image list names it"),
        ("JPEGImages/a3.jpg", "a3.jpg: missing, but the image list names it"),
    ],
)
def test_every_missing_thing_is_named_in_one_line(voc_tree: Path, damage: str, text: str) -> None:
    path = voc_tree / "VOC2012" / damage
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(DataError, match=text) as caught:
        voc_segmentation(voc_tree, "val")
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 3


def test_bad_lists_and_roots(voc_tree: Path) -> None:
    lists = voc_tree / "VOC2012" / "ImageSets" / "Main"
    (lists / "val.txt").write_text("a3  1\n\na1  1\n")
    assert voc_detection(voc_tree, "val", 2012).ids == ("a3", "a1")
    (lists / "val.txt").write_text("a3\na3\n")
    with pytest.raises(DataError, match="'a3' is listed twice"):
        voc_detection(voc_tree, "val", 2012)
    (lists / "val.txt").write_text("\n")
    with pytest.raises(DataError, match="list is empty"):
        voc_detection(voc_tree, "val", 2012)
    (lists / "val.txt").write_text("../../../../etc/passwd\n")
    with pytest.raises(DataError, match="missing, but"):
        voc_detection(voc_tree, "val", 2012)
    with pytest.raises(DataError, match="no VOC2007 here"):
        voc_detection(voc_tree / "VOC2012", "val", 2007)
    with pytest.raises(DataError, match="no such folder: expected a VOCdevkit"):
        voc_detection(voc_tree / "nothing", "val", 2012)


def test_boxes_are_zero_based_and_end_exclusive(voc_tree: Path) -> None:
    dataset = voc_detection(voc_tree, "trainval", 2012)
    boxes = dataset.boxes(1)
    assert boxes.dtype == np.float32
    assert boxes.tolist() == [[0, 0, 8, 8], [9, 9, 40, 32]]  # difficult ones are in, parts of objects are not
    assert dataset.box_labels(1) == ["cat", "dog"]
    labels, names = dominant_labels(dataset)
    assert [names[label] for label in labels] == ["dog", "dog", "cat"]


BOX = "<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>{}</xmax><ymax>4</ymax></bndbox>"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('<!DOCTYPE a [<!ENTITY x "boom">]><annotation>&x;</annotation>', "declares a document type"),
        ('<!DOCTYPE a SYSTEM "http://example.invalid/a.dtd"><annotation/>', "declares a document type"),
        ("<annotation><object>", "not a readable VOC annotation"),
        ("<annotation><object><name>dog</name></object></annotation>", "object 1 has no bndbox"),
        (f"<annotation><object><name>dog</name>{BOX.format('x')}</object></annotation>", "object 1 has no bndbox"),
        (f"<annotation><object><name>dog</name>{BOX.format('nan')}</object></annotation>", "empty box"),
        (f"<annotation><object><name>dog</name>{BOX.format(0)}</object></annotation>", "empty box"),
        (f"<annotation><object><name>dog</name>{BOX.format(1e300)}</object></annotation>", "empty box or one beyond"),
        (
            f"<annotation><object><name>dog</name>{BOX.format('9' * 400)}</object></annotation>",
            "empty box or one beyond",
        ),
        ("<a>" * 20_000, "not a readable VOC annotation"),
        (f"<annotation><object><name>elk</name>{BOX.format(4)}</object></annotation>", "'elk' is none of"),
    ],
)
def test_bad_annotations_are_refused_by_name(voc_tree: Path, text: str, problem: str) -> None:
    path = voc_tree / "VOC2012" / "Annotations" / "a3.xml"
    for content in (text.encode(), text.encode("utf-16")):
        path.write_bytes(content)
        with pytest.raises(DataError, match=problem) as caught:
            voc_detection(voc_tree, "val", 2012).boxes(0)
        assert "a3.xml" in str(caught.value)
        assert "\n" not in str(caught.value)


def test_image_without_objects(voc_tree: Path) -> None:
    (voc_tree / "VOC2012" / "Annotations" / "a3.xml").write_text("<annotation/>")
    dataset = voc_detection(voc_tree, "val", 2012)
    assert dataset.boxes(0).shape == (0, 4)
    with pytest.raises(DataError, match=r"a3.xml: no object"):
        dominant_labels(dataset)


@pytest.fixture
def real() -> Path:
    root = SHARED / "data" / "voc_mini" / "VOCdevkit"
    if not root.is_dir():
        pytest.skip("../shared/data/voc_mini is absent")
    return root


def test_real_masks_and_boxes(real: Path) -> None:
    for split, count in (("train", 100), ("val", 100), ("trainaug", 104)):
        dataset = voc_segmentation(real, split)
        assert len(dataset) == count
        for index in range(0, count, 10):
            dataset.label(index)
    detection = voc_detection(real, "trainval", 2012)
    assert (len(detection), sum(len(detection.boxes(i)) for i in range(len(detection)))) == (204, 797)
    old = voc_detection(real)
    assert (len(old), sum(len(old.boxes(i)) for i in range(len(old)))) == (40, 132)
    # Masks and boxes agree: the labels of the image's mask are the classes of its boxes.
    segmentation = voc_segmentation(real, "val")
    for index in range(0, 100, 9):
        if segmentation.ids[index] not in detection.ids:
            continue
        seen = set(np.unique(segmentation.label(index)).tolist()) - {0, 255}
        boxed = set(detection.box_labels(detection.ids.index(segmentation.ids[index])))
        assert {segmentation.class_names[value] for value in seen} == boxed


@pytest.mark.timeout(20)
def test_a_fifo_is_neither_annotation_nor_list(voc_tree: Path) -> None:
    folder = voc_tree / "VOC2012"
    for name in ("Annotations/a3.xml", "classes.txt"):
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)
        with pytest.raises(DataError, match=f"{Path(name).name}: is not a regular file"):
            voc_detection(voc_tree, "val", 2012).boxes(0)
        (folder / name).unlink()


@pytest.mark.parametrize(("flags", "refused"), [((1, -1), True), ((1, 1), False)])
def test_a_list_of_one_class_is_no_list_of_images(voc_tree: Path, flags: tuple[int, int], refused: bool) -> None:
    path = next(voc_tree.rglob("ImageSets/Segmentation/train.txt"))
    ids = path.read_text().split()
    path.write_text("".join(f"{name} {flags[number % 2]:2d}\n" for number, name in enumerate(ids)))
    folder = path.parents[2]
    if refused:
        with pytest.raises(DataError):
            read_list(folder, "Segmentation", "train")
    else:
        assert read_list(folder, "Segmentation", "train") == tuple(ids)


def test_lists_of_paths_as_deeplabs(voc_tree: Path) -> None:
    listed = voc_tree / "VOC2012" / "ImageSets" / "Segmentation" / "trainaug.txt"
    listed.write_text("/JPEGImages/a1.jpg /SegmentationClassAug/a1.png\nJPEGImages/a3.jpg\na2.png\n")
    assert voc_segmentation(voc_tree, "trainaug").ids == ("a1", "a3", "a2")
    listed.write_text("/JPEGImages/a1.jpg x\na1\n")
    with pytest.raises(DataError, match="'a1' is listed twice"):
        voc_segmentation(voc_tree, "trainaug")


def test_masks_and_photographs_with_capital_endings(tmp_path: Path) -> None:
    folder = tmp_path / "VOC2012"
    for part in ("JPEGImages", "SegmentationClass", "ImageSets/Segmentation"):
        (folder / part).mkdir(parents=True)
    Image.fromarray(np.zeros((4, 6, 3), np.uint8)).save(folder / "JPEGImages/A_1.JPG", "JPEG")
    Image.fromarray(np.ones((4, 6), np.uint8)).save(folder / "SegmentationClass/A_1.PNG", "PNG")
    (folder / "ImageSets/Segmentation/train.txt").write_text("A_1\n")
    opened = voc_segmentation(tmp_path, "train")
    assert opened.ids == ("A_1",)
    assert opened.label(0).tolist() == np.ones((4, 6), int).tolist()
