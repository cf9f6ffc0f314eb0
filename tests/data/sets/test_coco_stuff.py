from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dinoskip.data import Ade20kConfig, CocoStuffConfig, open_labels
from dinoskip.data.segmentation import IGNORE, ILLEGAL, ClassMap, class_map
from dinoskip.data.sets.ade20k import ADE20K, ADE20K_CLASSES
from dinoskip.data.sets.coco_stuff import COCO_STUFF, NEVER_USED, STUFF_CLASSES
from dinoskip.data.sets.labels import SEGMENTATION
from dinoskip.errors import DataError

SHARED = Path(__file__).parents[3].parent / "shared"
MAPS = {"ade20k": ADE20K, **COCO_STUFF}


@pytest.mark.parametrize("name", MAPS)
def test_tables_reach_every_class_and_nothing_else(name: str) -> None:
    classes = MAPS[name]
    assert (classes.table.shape, classes.table[IGNORE]) == ((256,), IGNORE)
    used = set(np.unique(classes.table).tolist()) - {IGNORE, ILLEGAL}
    assert used == set(range(len(classes.names)))
    assert len(set(classes.names)) == len(classes.names)
    assert (classes.palette.shape, classes.palette.dtype) == ((256, 3), np.uint8)
    colours = {tuple(colour) for colour in classes.palette[: len(classes.names)].tolist()}
    assert len(colours) == len(classes.names)
    assert (0, 0, 0) not in colours  # that is VOC's background


def named(classes: ClassMap, value: int) -> str | None:
    number = int(classes.table[value])
    return None if number in {IGNORE, ILLEGAL} else classes.names[number]


def test_ade20k_is_shifted_by_one() -> None:
    assert len(ADE20K.names) == 150
    assert [named(ADE20K, value) for value in (0, 1, 2, 13, 150)] == [None, "wall", "building", "person", "flag"]
    assert (ADE20K.table[0], ADE20K.table[151]) == (IGNORE, ILLEGAL)


def test_coco_stuff_sets() -> None:
    assert {name: len(classes.names) for name, classes in COCO_STUFF.items()} == {
        "171": 171,
        "182": 182,
        "27": 27,
        "15": 15,
    }
    # value: label, coarse label
    known = {
        0: ("person", "person"), 1: ("bicycle", "vehicle"), 16: ("cat", "animal"), 51: ("banana", "food"),
        61: ("chair", "furniture"), 71: ("tv", "electronic"), 91: ("banner", "textile"), 105: ("clouds", "sky"),
        120: ("food-other", "food-stuff"), 129: ("light", "furniture-stuff"), 168: ("tree", "plant"),
        181: ("wood", "solid"),
    }  # fmt: skip
    for value, (fine, coarse) in known.items():
        assert named(COCO_STUFF["182"], value) == named(COCO_STUFF["171"], value) == fine
        assert named(COCO_STUFF["27"], value) == coarse
        assert named(COCO_STUFF["15"], value) == (None if value < 91 else coarse)
    unused = {value for value, name in enumerate(STUFF_CLASSES) if name in NEVER_USED}
    assert unused == {11, 25, 28, 29, 44, 65, 67, 68, 70, 82, 90}
    assert {value for value in range(182) if COCO_STUFF["171"].table[value] == ILLEGAL} == unused
    assert (COCO_STUFF["15"].table[:91] == IGNORE).all()
    for classes in COCO_STUFF.values():
        assert (classes.table[182:255] == ILLEGAL).all()
    things = COCO_STUFF["27"].names[:12]
    order = "electronic appliance food furniture indoor kitchen accessory animal outdoor person sports vehicle"
    assert things == tuple(order.split())
    assert COCO_STUFF["27"].names[12:] == COCO_STUFF["15"].names


def test_own_lists_from_any_first_value() -> None:
    classes = class_map(("a", "b"), first=3, ignored=(0, 255))
    assert [int(classes.table[value]) for value in (0, 1, 2, 3, 4, 5, 255)] == [255, -1, -1, 0, 1, -1, 255]


VALUES = np.array([[0, 1, 11, 90], [91, 181, 254, 255]], np.uint8)


def hand_made(folder: Path, values: np.ndarray) -> None:
    for part in ("train2017", "stuffthingmaps/train2017"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    Image.fromarray(values).save(folder / "stuffthingmaps" / "train2017" / "1.png")
    Image.fromarray(np.zeros((*values.shape, 3), np.uint8)).save(folder / "train2017" / "1.jpg")


@pytest.mark.parametrize(
    ("classes", "illegal", "wanted"),
    [
        ("182", {254}, [[0, 1, 11, 90], [91, 181, 255, 255]]),
        ("171", {254, 11, 90}, [[0, 1, 255, 255], [80, 170, 255, 255]]),
        ("27", {254}, [[9, 11, 8, 4], [17, 24, 255, 255]]),
        ("15", {254}, [[255, 255, 255, 255], [5, 12, 255, 255]]),
    ],
)
def test_hand_made_masks_become_class_numbers(tmp_path: Path, classes: str, illegal: set, wanted: list) -> None:
    config = CocoStuffConfig(root=str(tmp_path), classes=classes)
    for value in sorted(illegal):
        hand_made(tmp_path, np.where(np.isin(VALUES, list(illegal - {value})), 255, VALUES).astype(np.uint8))
        with pytest.raises(
            DataError, match=rf"1.png: label value {value} \(1 pixels\) is outside the {classes} classes"
        ):
            open_labels(SEGMENTATION, config, "train").label(0)
    hand_made(tmp_path, np.where(np.isin(VALUES, list(illegal)), 255, VALUES).astype(np.uint8))
    labels = open_labels(SEGMENTATION, config, "train").label(0)
    assert labels.dtype == np.uint8
    assert labels.tolist() == wanted


def test_published_lists_of_names() -> None:
    data = SHARED / "data"
    if not data.is_dir():
        pytest.skip("../shared/data is absent")
    lines = (data / "coco_mini" / "stuffthingmaps" / "labels.txt").read_text().splitlines()
    assert tuple(line.split(": ")[1].strip() for line in lines[1:]) == STUFF_CLASSES  # id 0 is unlabeled
    table = (data / "ade_mini" / "ADEChallengeData2016" / "objectInfo150.txt").read_text().splitlines()
    assert tuple(line.split("\t")[4].split(",")[0].strip() for line in table[1:]) == ADE20K_CLASSES


@pytest.mark.parametrize(
    ("config", "counts"),
    [
        (Ade20kConfig(root="ade_mini"), (8, 9)),
        (Ade20kConfig(root="ade_mini_derived"), (3, 10)),
        *((CocoStuffConfig(root="coco_mini", classes=classes), (13, 8)) for classes in COCO_STUFF),
    ],
)
def test_real_masks_hold_legal_values_and_fit(config: Ade20kConfig | CocoStuffConfig, counts: tuple[int, int]) -> None:
    root = SHARED / "data" / config.root
    if not root.is_dir():
        pytest.skip(f"../shared/data/{config.root} is absent")
    for split, count in zip(("train", "val"), counts, strict=True):
        dataset = open_labels(SEGMENTATION, config, split, root)
        assert len(dataset) == count
        seen = {value for index in range(count) for value in np.unique(dataset.label(index)).tolist()}
        assert seen <= {*range(dataset.num_classes), IGNORE}
        assert len(seen) > 10


def put(folder: Path, name: str, values: np.ndarray) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values).save(folder / name)


PHOTO = np.zeros((1, 4, 3), np.uint8)
RAW = np.array([[0, 12, 91, 255]], np.uint8)  # person, stop sign, banner, unlabelled
TRAIN_IDS = np.array([[0, 11, 80, 255]], np.uint8)  # the same, counted without the 11 labels that never occur


@pytest.mark.parametrize("classes", ["171", "27"])
@pytest.mark.parametrize(
    ("images", "masks", "name", "values"),
    [
        ("images/val2017", "annotations/val2017", "7_labelTrainIds.png", TRAIN_IDS),
        ("images/val2017", "annotations/val2017", "7.png", RAW),
        ("val2017", "stuffthingmaps_trainval2017/val2017", "7.png", RAW),
        ("val2017", "val2017", "7.png", RAW),
        ("images/val2017", "images/val2017", "7.png", RAW),
    ],
)
def test_layouts_that_people_have(
    tmp_path: Path, images: str, masks: str, name: str, values: np.ndarray, classes: str
) -> None:
    put(tmp_path / images, "7.jpg", PHOTO)
    put(tmp_path / masks, name, values)
    dataset = open_labels(SEGMENTATION, CocoStuffConfig(root=str(tmp_path), classes=classes), "val")
    assert (dataset.ids, dataset.path(0).name) == (("7",), "7.jpg")
    assert dataset.label(0).tolist() == {"171": [[0, 11, 80, 255]], "27": [[9, 8, 17, 255]]}[classes]


def test_of_masks_and_converted_ones_side_by_side_the_masks_are_read(tmp_path: Path) -> None:
    put(tmp_path / "images" / "val2017", "7.jpg", PHOTO)
    put(tmp_path / "annotations" / "val2017", "7.png", RAW)
    put(tmp_path / "annotations" / "val2017", "7_labelTrainIds.png", TRAIN_IDS)
    dataset = open_labels(SEGMENTATION, CocoStuffConfig(root=str(tmp_path), classes="182"), "val")
    assert (dataset.ids, dataset.label(0).tolist()) == (("7",), RAW.tolist())
    put(tmp_path / "annotations" / "val2017", "7_labelTrainIds.png", np.full((1, 4), 171, np.uint8))
    (tmp_path / "annotations" / "val2017" / "7.png").unlink()
    with pytest.raises(DataError, match="label value 171"):
        open_labels(SEGMENTATION, CocoStuffConfig(root=str(tmp_path)), "val").label(0)
