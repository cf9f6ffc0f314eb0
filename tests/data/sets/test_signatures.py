"""Label files that mean something else than the settings say are noticed, and right ones are not."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dinoskip.data.label_values import fingerprint, label_values
from dinoskip.data.sets import open_labels
from dinoskip.data.sets.ade20k import ADE20K_CLASSES
from dinoskip.data.sets.coco_stuff import NEVER_USED, STUFF_CLASSES
from dinoskip.data.sets.labels import LABELS
from dinoskip.data.sets.numberings import STUFF_GAPS
from dinoskip.errors import ConfigError, DataError
from tests.helpers.signatures import SIZE, blocks, composed_and_judged, dataset, judged, save, stopping

SHARED = Path(__file__).parents[4] / "shared"


@pytest.fixture
def masks(tmp_path: Path) -> Callable[..., Path]:
    """Makes a set of kind ``masks``: classes and the label map of every image."""

    def make(classes: str, maps: Sequence[np.ndarray]) -> Path:
        for number, values in enumerate(maps):
            save(tmp_path / f"images/train/{number}.jpg", np.zeros((*values.shape[:2], 3), np.uint8))
            save(tmp_path / f"masks/train/{number}.png", values)
        (tmp_path / "classes.txt").write_text("\n".join(classes.split()))
        return tmp_path

    return make


# --- own masks -------------------------------------------------------------------------------------------


def test_masks_of_0_and_255_are_refused_and_read_by_their_setting(masks: Callable[..., Path]) -> None:
    root = masks("background object", [blocks([0, 255], seed) for seed in range(3)])
    (one,) = judged("segmentation", ["train"], kind="masks", root=str(root))
    assert (one.state, one.check, one.by) == ("refused", "masks-0-255", "data")
    assert "values=[0,255]" in one.remedy
    assert not judged("segmentation", ["train"], kind="masks", root=str(root), values=[0, 255])
    opened = open_labels(LABELS["segmentation"], dataset(kind="masks", root=str(root), values=[0, 255]), "train")
    assert np.unique(opened.label(0)).tolist() == [0, 1]


def test_a_value_for_each_class(masks: Callable[..., Path]) -> None:
    root = masks("a b c", [blocks([0, 128, 255], seed) for seed in range(3)])
    (one,) = judged("segmentation", ["train"], kind="masks", root=str(root))
    assert (one.state, one.check) == ("refused", "foreign-values")
    assert "3 of 3 masks" in one.text
    assert "holds 128" in one.text
    assert "values=[0,128,255]" in one.remedy
    config = dataset(kind="masks", root=str(root), values=[0, 128, 255])
    assert not judged("segmentation", ["train"], **config.model_dump())
    assert np.unique(open_labels(LABELS["segmentation"], config, "train").label(0)).tolist() == [0, 1, 2]
    with pytest.raises(ConfigError, match="values"):
        open_labels(LABELS["segmentation"], dataset(kind="masks", root=str(root), values=[0, 255]), "train")


def test_a_list_without_background_is_answered_with_first_value(masks: Callable[..., Path]) -> None:
    root = masks("cat dog", [blocks([0, 1, 2], 0)])
    (one,) = judged("segmentation", ["train"], kind="masks", root=str(root))
    assert (one.state, one.check) == ("refused", "foreign-values")
    assert "first_value=1" in one.remedy
    assert not judged("segmentation", ["train"], kind="masks", root=str(root), first_value=1)


def test_a_list_without_background_is_doubtful_where_the_last_class_is_in_no_mask(masks: Callable[..., Path]) -> None:
    maps = [blocks([0, 0, 0, 0, 1, 2], seed) for seed in range(5)]
    root = masks("cat dog cow hen", [*maps, blocks([0, 0, 0, 3], 9)])
    found = judged("segmentation", ["train"], kind="masks", root=str(root))
    assert not stopping(found), "all classes are there"
    assert [one.state for one in found if one.check == "background-unlisted"] == ["said"]
    root = masks("cat dog cow hen", [*maps, maps[0]])
    (one,) = (v for v in judged("segmentation", ["train"], kind="masks", root=str(root)) if v.state == "doubtful")
    assert one.check == "background-unlisted"
    assert "first_value=1" in one.remedy
    assert not stopping(judged("segmentation", ["train"], kind="masks", root=str(root), first_value=1))
    root = masks("background dog cow hen", [*maps, maps[0]])
    assert not stopping(judged("segmentation", ["train"], kind="masks", root=str(root)))


def yolo(root: Path, numbers: Sequence[int], names: str) -> dict[str, Any]:
    """A set of kind ``yolo`` with ten boxes of these classes in turn in each of four images."""
    for image in range(4):
        save(root / f"images/train/{image}.png", np.zeros((64, 64, 3), np.uint8))
        (root / "labels/train").mkdir(parents=True, exist_ok=True)
        lines = [f"{numbers[(image + at) % len(numbers)]} .5 .5 .25 .25" for at in range(10)]
        (root / f"labels/train/{image}.txt").write_text("\n".join(lines))
    (root / "classes.txt").write_text("\n".join(names.split()))
    return {"kind": "yolo", "root": str(root)}


@pytest.mark.parametrize(
    ("numbers", "names", "expected"),
    [
        ((0, 1, 2), "cat dog cow", []),
        ((1, 2, 3), "cat dog cow", [("refused", "unreadable-labels")]),
        ((1, 2), "cat dog cow", [("doubtful", "numbered-from-1")]),
        ((1, 2), "background dog cow", []),
        ((1,), "cat dog cow", []),
        ((0, 2), "cat dog cow", []),
    ],
)
def test_yolo_numbered_from_1(tmp_path: Path, numbers: tuple[int, ...], names: str, expected: list) -> None:
    settings = yolo(tmp_path, numbers, names)
    found = judged("detection", ["train"], **settings)
    assert stopping(found) == expected
    if expected:
        assert "first_class=1" in found[0].text + found[0].remedy
        opened = open_labels(LABELS["detection"], dataset(**settings, first_class=1), "train")
        assert opened.box_labels(0)[0] == "cat"
        assert not stopping(judged("detection", ["train"], **settings, first_class=1))


def test_masks_in_colours_are_refused_before_anything_is_computed(masks: Callable[..., Path]) -> None:
    root = masks("a b", [np.stack([blocks([0, 1], 0)] * 3, -1)] + [blocks([0, 1], seed) for seed in range(4)])
    (one,) = judged("segmentation", ["train"], kind="masks", root=str(root))
    assert (one.state, one.check) == ("refused", "unreadable-labels")
    assert "1 of 5" in one.text
    assert "masks/train/0.png" in one.text
    assert not judged("segmentation", ["train"], kind="masks", root=str(root), skip_broken=True)


def test_an_object_saved_as_void_is_doubtful_and_a_rim_is_not(masks: Callable[..., Path]) -> None:
    thick, thin = np.zeros((200, 200), np.uint8), np.zeros((200, 200), np.uint8)
    thick[20:90, 20:90] = thin[20:90, 20:90] = 1
    thick[120:180, 120:180] = 255
    thin[18:20, 18:90] = 255
    root = masks("background cat dog", [thick] * 5)
    found = judged("segmentation", ["train"], kind="masks", root=str(root))
    assert stopping(found) == [("doubtful", "thick-void")]
    assert "dog" in found[0].text
    masks("background cat dog", [thin] * 5)
    assert not stopping(judged("segmentation", ["train"], kind="masks", root=str(root)))


def test_classes_that_no_mask_has_are_named_and_stop_nothing(masks: Callable[..., Path]) -> None:
    root = masks("sky tree road", [blocks([0, 2], seed) for seed in range(6)])
    (one,) = judged("segmentation", ["train"], kind="masks", root=str(root))
    assert (one.state, one.check) == ("said", "never-seen")
    assert one.text.endswith("1 of the 3 classes: tree")


def test_one_class_alone_is_doubtful(masks: Callable[..., Path]) -> None:
    root = masks("sky tree", [blocks([0], 0)] * 5)
    found = judged("segmentation", ["train"], kind="masks", root=str(root))
    assert stopping(found) == [("doubtful", "one-class")]
    assert "tree" in found[0].text


def test_much_void_is_doubtful(masks: Callable[..., Path]) -> None:
    root = masks("a b", [blocks([0, 1, 255, 255], seed) for seed in range(5)])
    assert stopping(judged("segmentation", ["train"], kind="masks", root=str(root))) == [("doubtful", "void-share")]


def test_counts_are_of_all_files_and_known_again_by_size_and_time(masks: Callable[..., Path]) -> None:
    root = masks("a b", [blocks([0, 1], seed) for seed in range(3)])
    opened = open_labels(LABELS["segmentation"], dataset(kind="masks", root=str(root)), "train")
    counts = label_values("segmentation", opened)
    assert (counts.read, counts.total, counts.files[:3]) == (3, 3, (3, 3, 0))
    assert sum(counts.pixels) == 3 * SIZE[0] * SIZE[1]
    assert type(counts).of_plain(counts.plain()) == counts
    assert (counts + counts).files[:2] == (6, 6)
    before = fingerprint("segmentation", opened)
    assert fingerprint("segmentation", opened) == before
    save(root / "masks/train/1.png", blocks([0], 0))
    assert fingerprint("segmentation", opened) != before


def numbered(count: int, seed: int) -> np.ndarray:
    """A mask of so many objects, squares of 6 pixels in a row each, numbered from 1."""
    values = np.zeros((48, 48), np.uint8)
    for number in range(count):
        row, column = divmod(number, 3)
        values[4 + 16 * row : 10 + 16 * row, 4 + 16 * column : 10 + 16 * column + seed % 3] = number + 1
    return values


def test_values_that_count_the_objects_of_each_image_are_doubtful(masks: Callable[..., Path]) -> None:
    counts = [1, 2, 3, 4, 5, 2, 3, 4, 2, 3, 5, 2]
    root = masks("background a b c d e", [numbered(count, seed) for seed, count in enumerate(counts)])
    found = judged("segmentation", ["train"], kind="masks", root=str(root))
    assert stopping(found) == [("doubtful", "object-numbers")]
    assert "12 of 12" in found[0].text
    classes = [
        np.where(values > 0, 1 + (values + seed) % 5, 0) for seed, values in enumerate(map(numbered, counts, counts))
    ]
    masks("background a b c d e", [values.astype(np.uint8) for values in classes])
    assert not stopping(judged("segmentation", ["train"], kind="masks", root=str(root)))
    masks("background organ tumour", [numbered(1 + seed % 2, seed) for seed in range(24)])
    assert not stopping(judged("segmentation", ["train"], kind="masks", root=str(root)))


def test_a_background_inside_the_object_is_doubtful(masks: Callable[..., Path]) -> None:
    maps = [(numbered(2, seed) > 0).astype(np.uint8) for seed in range(5)]
    root = masks("background object", [1 - values for values in maps])
    found = judged("segmentation", ["train"], kind="masks", root=str(root))
    assert stopping(found) == [("doubtful", "object-surrounds")]
    assert not stopping(judged("segmentation", ["train"], kind="masks", root=str(root), values=[1, 0]))
    masks("background object", maps)
    assert not stopping(judged("segmentation", ["train"], kind="masks", root=str(root)))


def test_interpolated_masks_are_doubtful_and_a_class_drawn_along_borders_is_not(masks: Callable[..., Path]) -> None:
    maps = [np.kron(blocks([0, 1, 3, 5], seed), np.ones((2, 2))).astype(np.uint8) for seed in range(4)]
    shrunk = [Image.fromarray(values).resize((60, 52), Image.Resampling.BILINEAR) for values in maps]
    root = masks("background a b c d e", [np.array(one.resize((96, 80), Image.Resampling.BILINEAR)) for one in shrunk])
    for values, name in ((0, 2), (1, 4)):  # classes that are somewhere wide, as in sets of any size
        save(root / f"masks/train/{values}.png", np.full((80, 96), name, np.uint8))
    found = judged("segmentation", ["train"], kind="masks", root=str(root))
    assert stopping(found) == [("doubtful", "interpolated")]
    masks("background a b c d e", maps)
    assert not stopping(judged("segmentation", ["train"], kind="masks", root=str(root)))
    cells = [2 * (numbered(3, seed) > 0).astype(np.uint8) for seed in range(4)]
    for values in cells:
        inner = values > 0
        border = inner & ~(np.roll(inner, 1, 0) & np.roll(inner, -1, 0) & np.roll(inner, 1, 1) & np.roll(inner, -1, 1))
        values[border] = 1
    masks("background border cell d e f", cells)
    assert not stopping(judged("segmentation", ["train"], kind="masks", root=str(root)))


@pytest.mark.parametrize(
    ("shift", "count", "expected"), [(1, 8, [("doubtful", "splits-unlike")]), (0, 8, []), (1, 7, [])]
)
def test_a_split_that_numbers_its_classes_otherwise_is_doubtful(
    tmp_path: Path, shift: int, count: int, expected: list
) -> None:
    for split, more in (("train", 0), ("val", shift)):
        for number in range(count):
            save(tmp_path / f"images/{split}/{number}.jpg", np.zeros((*SIZE, 3), np.uint8))
            save(tmp_path / f"masks/{split}/{number}.png", blocks([0, 0, 0, 1, 2], number) + more)
    (tmp_path / "classes.txt").write_text("background\ncat\ndog\nowl")
    found = stopping(judged("segmentation", ["train", "val"], kind="masks", root=str(tmp_path)))
    assert found == expected


def test_a_background_that_is_not_named_first_is_doubtful(masks: Callable[..., Path]) -> None:
    maps = [blocks([0, 0, 0, 0, 1, 2, 3], seed) for seed in range(5)]
    root = masks("cat dog cow background", maps)
    found = judged("segmentation", ["train"], kind="masks", root=str(root))
    assert stopping(found) == [("doubtful", "background-elsewhere")]
    masks("cat dog cow other", maps)
    assert not stopping(judged("segmentation", ["train"], kind="masks", root=str(root)))
    masks("cat dog cow background", [3 - values for values in maps])
    assert not stopping(judged("segmentation", ["train"], kind="masks", root=str(root)))


def test_the_name_of_a_column_is_doubtful_where_the_last_class_is_in_no_mask(masks: Callable[..., Path]) -> None:
    root = masks("name road car sky", [blocks([0, 1, 2], seed) for seed in range(5)])
    assert ("doubtful", "list-heading") in stopping(judged("segmentation", ["train"], kind="masks", root=str(root)))
    masks("name road car sky", [blocks([0, 1, 2, 3], seed) for seed in range(5)])
    assert not stopping(judged("segmentation", ["train"], kind="masks", root=str(root)))


def test_numbers_in_a_list_are_those_of_the_settings(masks: Callable[..., Path]) -> None:
    root = masks("a", [blocks([0, 1, 2], seed) for seed in range(3)])
    (root / "classes.txt").write_text("1: cat\n2: dog\n")
    with pytest.raises(DataError) as caught:
        open_labels(LABELS["segmentation"], dataset(kind="masks", root=str(root)), "train")
    assert caught.value.hint is not None
    assert "first_value=1" in caught.value.hint
    config = dataset(kind="masks", root=str(root), first_value=1)
    assert open_labels(LABELS["segmentation"], config, "train").class_names == ("cat", "dog")


# --- published numberings --------------------------------------------------------------------------------


def ade(root: Path, maps: Sequence[np.ndarray]) -> str:
    for number, values in enumerate(maps):
        save(root / f"images/training/{number}.jpg", np.zeros((*SIZE, 3), np.uint8))
        save(root / f"annotations/training/{number}.png", values)
    return str(root)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0, 1, 5, 150], []),
        ([255, 0, 4, 149], [("refused", "ade20k-numbering")]),
        ([254, 0, 4, 149], [("refused", "ade20k-numbering")]),
        ([1, 5, 150], [("doubtful", "ade20k-numbering")]),
        ([0, 5, 200], [("refused", "foreign-values")]),
    ],
)
def test_ade20k_reduced_already(tmp_path: Path, values: list[int], expected: list) -> None:
    root = ade(tmp_path, [blocks(values, seed) for seed in range(5)])
    found = judged("segmentation", ["train"], kind="ade20k", root=root)
    assert stopping(found) == expected
    if {254, 255} & set(values):
        assert "numbering=reduced" in found[0].remedy
        config = dataset(kind="ade20k", root=root, numbering="reduced")
        assert not stopping(judged("segmentation", ["train"], **config.model_dump()))
        label = open_labels(LABELS["segmentation"], config, "train").label(0)
        assert np.unique(label).tolist() == [0, 4, 149, 255]
    elif 150 in values:
        again = judged("segmentation", ["train"], kind="ade20k", root=root, numbering="reduced")
        assert stopping(again) == [("refused", "ade20k-numbering")]


def test_ade20k_reduced_with_other_kept_as_0_is_seen_by_where_skies_and_floors_lie(tmp_path: Path) -> None:
    sky, tree, floor = (ADE20K_CLASSES.index(name) + 1 for name in ("sky", "tree", "floor"))
    right = np.repeat([0, sky, sky, tree, 0, floor, floor, 0], 5)[:, None] * np.ones((1, SIZE[1]), int)
    for lowered, expected in ((0, []), (1, [("doubtful", "ade20k-shifted")])):
        maps = [np.maximum(right - lowered, 0).astype(np.uint8)] * 10
        found = judged("segmentation", ["train"], kind="ade20k", root=ade(tmp_path, maps))
        assert stopping(found) == expected
        assert all("raised by 1" in one.text for one in found if one.state == "doubtful")


def stuff(root: Path, maps: Sequence[np.ndarray]) -> str:
    for number, values in enumerate(maps):
        save(root / f"train2017/{number}.jpg", np.zeros((*values.shape, 3), np.uint8))
        save(root / f"stuffthingmaps/train2017/{number}.png", values)
    return str(root)


@pytest.mark.parametrize("numbering", ["published", "ids", "train_ids"])
def test_shifted_coco_stuff_is_seen_by_where_skies_and_grounds_lie(tmp_path: Path, numbering: str) -> None:
    sky, tree, road = (STUFF_CLASSES.index(name) for name in ("sky-other", "tree", "road"))
    if numbering == "train_ids":
        sky, tree, road = (USED.index(value) for value in (sky, tree, road))
    first = numbering == "ids"
    right = np.repeat([0 if first else 255, sky, sky, tree, tree, road, road, road], 5)[:, None]
    right = right * np.ones((1, SIZE[1]), int) + (first & (right > 0))
    for raised, expected in ((0, []), (1, [("doubtful", "coco-stuff-shifted")])):
        maps = [np.where(np.isin(right, (0, 255)), right, right + raised).astype(np.uint8)] * 20
        root = stuff(tmp_path / str(raised), maps)
        for classes in ("171", "15"):
            found = judged(
                "segmentation", ["train"], kind="coco_stuff", root=root, numbering=numbering, classes=classes
            )
            assert stopping(found) == expected
            assert all("raised by -1" in one.text for one in found if one.check == "coco-stuff-shifted")


USED = [value for value, name in enumerate(STUFF_CLASSES) if name not in NEVER_USED]


def test_the_gaps_of_coco_stuff_are_its_unused_classes() -> None:
    assert {value for value, name in enumerate(STUFF_CLASSES) if name in NEVER_USED} == STUFF_GAPS


@pytest.mark.parametrize("classes", ["171", "182", "27", "15"])
@pytest.mark.parametrize("numbering", ["published", "ids", "train_ids"])
def test_coco_stuff_in_other_numberings(tmp_path: Path, numbering: str, classes: str) -> None:
    rng = np.random.default_rng(0)
    right = [np.array([255, *rng.choice(USED, 20, replace=False)]) for _ in range(12)]
    for number, values in enumerate(right):
        drawn = {
            "published": values,
            "ids": np.where(values == 255, 0, values + 1),
            "train_ids": np.array([255 if value == 255 else USED.index(value) for value in values]),
        }[numbering]
        save(tmp_path / f"train2017/{number}.jpg", np.zeros((*SIZE, 3), np.uint8))
        save(tmp_path / f"stuffthingmaps/train2017/{number}.png", blocks(drawn.tolist(), 0))
    found = judged("segmentation", ["train"], kind="coco_stuff", root=str(tmp_path), classes=classes)
    if numbering == "published":
        assert not [one for one in found if one.check == "coco-stuff-numbering"]
        return
    assert stopping(found) == [("refused", "coco-stuff-numbering")]
    assert f"numbering={numbering}" in found[0].remedy
    config = dataset(kind="coco_stuff", root=str(tmp_path), classes="182", numbering=numbering)
    label = open_labels(LABELS["segmentation"], config, "train").label(0)
    assert np.unique(label).tolist() == sorted(right[0].tolist())
    assert not [one for one in judged("segmentation", ["train"], **config.model_dump()) if one.state == "refused"]


@pytest.mark.parametrize("ending", ["labelIds", "labelTrainIds"])
@pytest.mark.parametrize("held", ["labelIds", "labelTrainIds"])
def test_cityscapes_ids_and_train_ids(tmp_path: Path, ending: str, held: str) -> None:
    for number in range(3):
        save(tmp_path / f"leftImg8bit/train/x/{number}_leftImg8bit.png", np.zeros((*SIZE, 3), np.uint8))
        values = [0, 7, 11, 21, 23, 26] if held == "labelIds" else [0, 2, 8, 10, 13, 255]
        save(tmp_path / f"gtFine/train/x/{number}_gtFine_{ending}.png", blocks(values, number))
    found = judged("segmentation", ["train"], kind="cityscapes", root=str(tmp_path))
    assert stopping(found) == ([] if ending == held else [("refused", "cityscapes-numbering")])


def voc(root: Path, shift: int, *, background: bool = True) -> str:
    """Masks whose values are those of the boxes' classes and ``shift``."""
    names = ("cat", "dog", "horse", "sheep", "sofa", "bus")
    numbers = {"cat": 8, "dog": 12, "horse": 13, "sheep": 17, "sofa": 18, "bus": 6}
    for number, name in enumerate(names):
        values = np.full(SIZE, 0 if background else 255, np.uint8)
        values[5:20, 5:20] = numbers[name] + shift
        save(root / f"JPEGImages/{number}.jpg", np.zeros((*SIZE, 3), np.uint8))
        save(root / f"SegmentationClass/{number}.png", values)
        (root / "Annotations").mkdir(exist_ok=True)
        box = "<bndbox><xmin>5</xmin><ymin>5</ymin><xmax>20</xmax><ymax>20</ymax></bndbox>"
        (root / f"Annotations/{number}.xml").write_text(
            f"<annotation><object><name>{name}</name>{box}</object></annotation>"
        )
    (root / "ImageSets/Segmentation").mkdir(parents=True, exist_ok=True)
    (root / "ImageSets/Segmentation/train.txt").write_text("".join(f"{number}\n" for number in range(len(names))))
    return str(root)


def test_voc_masks_are_compared_with_their_boxes(tmp_path: Path) -> None:
    assert not stopping(judged("segmentation", ["train"], kind="voc", root=voc(tmp_path, 0)))
    for shift in (1, -1):
        found = judged("segmentation", ["train"], kind="voc", root=voc(tmp_path, shift))
        assert stopping(found) == [("refused", "voc-numbering")]
        assert "6 of 6" in found[0].text


def test_voc_masks_without_background_are_doubtful(tmp_path: Path) -> None:
    found = judged("segmentation", ["train"], kind="voc", root=voc(tmp_path, 0, background=False))
    assert ("doubtful", "void-share") in stopping(found)


# --- classes -----------------------------------------------------------------------------------


def test_images_of_one_class_are_doubtful(tmp_path: Path) -> None:
    for number in range(10):
        for name in ("cat", "dog"):
            save(tmp_path / f"train/{name}/{number}.png", np.full((*SIZE, 3), 20 * number + ord(name[0]) % 7, np.uint8))
        save(tmp_path / f"val/cat/{number}.png", np.full((*SIZE, 3), number, np.uint8))
    assert stopping(judged("classes", ["val"], kind="folder", root=str(tmp_path))) == [("doubtful", "one-class")]
    save(tmp_path / "val/dog/0.png", np.full((*SIZE, 3), 99, np.uint8))
    assert not judged("classes", ["val"], kind="folder", root=str(tmp_path))


def test_a_folder_of_unlabelled_images_is_no_class(tmp_path: Path) -> None:
    for name, first in (("cat", 0), ("dog", 50), ("Unlabeled", 100)):
        for number in range(3):
            save(tmp_path / f"train/{name}/{number}.png", np.full((8, 8, 3), first + number, np.uint8))
    assert stopping(judged("classes", ["train"], kind="folder", root=str(tmp_path))) == [
        ("doubtful", "unlabelled-class")
    ]


def test_images_in_two_classes_are_doubtful_and_few_of_many_are_said(tmp_path: Path) -> None:
    for name, first in (("cat", 0), ("dog", 100)):
        for number in range(60):
            save(tmp_path / f"train/{name}/{number}.png", np.full((8, 8, 3), first + number, np.uint8))
    assert not judged("classes", ["train"], kind="folder", root=str(tmp_path))
    shutil.copy(tmp_path / "train/cat/3.png", tmp_path / "train/cat/3b.png")
    assert not judged("classes", ["train"], kind="folder", root=str(tmp_path)), "two files of one class"
    shutil.copy(tmp_path / "train/cat/7.png", tmp_path / "train/dog/copy.png")
    (one,) = judged("classes", ["train"], kind="folder", root=str(tmp_path))
    assert (one.state, one.check) == ("doubtful", "in-two-classes")
    assert "2 of 122" in one.text
    assert "cat/7.png = dog/copy.png" in one.text


def test_swapped_object_masks_are_doubtful(tmp_path: Path) -> None:
    for number in range(10):
        values = blocks([0, 0, 0, 255], number)
        for name, labels in (("right", values), ("swapped", 255 - values)):
            save(tmp_path / name / f"images/{number}.jpg", np.zeros((*SIZE, 3), np.uint8))
            save(tmp_path / name / f"ground_truth_mask/{number}.png", labels)
    for name, expected in (("right", []), ("swapped", [("doubtful", "object-is-rest")])):
        found = judged("segmentation", ["test"], kind="ecssd", root=str(tmp_path / name))
        assert stopping(found) == expected


# --- right sets ------------------------------------------------------------------------------------------

REAL: list[tuple[str, tuple[str, ...], dict[str, Any]]] = [
    ("segmentation", ("train", "val"), {"kind": "voc", "root": "voc_mini/VOCdevkit"}),
    ("segmentation", ("trainaug",), {"kind": "voc", "root": "voc_mini/VOCdevkit"}),
    ("classes", ("train", "val"), {"kind": "voc", "root": "voc_mini/VOCdevkit"}),
    ("segmentation", ("train", "val"), {"kind": "ade20k", "root": "ade_mini"}),
    ("segmentation", ("train", "val"), {"kind": "ade20k", "root": "ade_mini_derived"}),
    *(
        ("segmentation", ("train", "val"), {"kind": "coco_stuff", "root": "coco_mini", "classes": classes})
        for classes in ("171", "182", "27", "15")
    ),
    ("classes", ("train", "val"), {"kind": "folder", "root": "imagenette_mini"}),
    ("detection", ("train", "val"), {"kind": "coco", "root": "coco_mini"}),
]


@pytest.mark.parametrize(("label", "splits", "settings"), REAL)
def test_real_samples_are_right(label: str, splits: tuple[str, ...], settings: dict[str, Any]) -> None:
    root = SHARED / "data" / settings["root"]
    if not root.is_dir():
        pytest.skip("../shared/data is absent")
    assert not stopping(judged(label, splits, **{**settings, "root": str(root)}))


def test_composed_sets_are_right(tmp_path: Path) -> None:
    assert not composed_and_judged(tmp_path / "set", kind="scenes", images=8)


@pytest.mark.parametrize(
    ("case", "kind", "check"),
    [
        ("masks_0_and_255", "masks", ("refused", "masks-0-255")),
        ("ade20k_already_reduced", "ade20k", ("refused", "ade20k-numbering")),
        ("class_never_seen", "masks", ("doubtful", "one-class")),
    ],
)
def test_cases(case: str, kind: str, check: tuple[str, str]) -> None:
    root = SHARED / "cases" / case
    if not root.is_dir():
        pytest.skip("../shared/cases is absent")
    assert stopping(judged("segmentation", ["train", "val"], kind=kind, root=str(root))) == [check]
