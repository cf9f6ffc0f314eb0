"""A folder's format is recognised by evidence: nineteen layouts, renamed, with one split, and mixed."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from dinoskip.data import list_images
from dinoskip.data.recognise import FolderReading, recognise
from dinoskip.data.sets import open_labels
from dinoskip.data.sets.labels import DETECTION
from dinoskip.data.shards import TarShards
from dinoskip.errors import DataError
from dinoskip.pipeline.look.study import dataset_of
from tests.helpers import folders_people_have as made
from tests.helpers.folders_people_have import LAYOUTS, Made, label_map, photo

SHARED = Path(__file__).parents[3] / "shared"


def read_as(root: Path, right: Made) -> FolderReading:
    """Recognise a folder; its photographs must be the right ones, and nothing is lost in counting."""
    reading = recognise(root)
    assert set(reading.photographs) == right.photographs
    assert reading.maps + reading.others == right.maps
    assert "\n" not in reading.line
    return reading


@pytest.mark.parametrize("name", LAYOUTS)
def test_nineteen_layouts(tmp_path: Path, name: str) -> None:
    make, layout, kind = LAYOUTS[name]
    reading = read_as(tmp_path / "set", make(tmp_path / "set"))
    assert (reading.layout.name, reading.layout.kind) == (layout, kind)
    assert reading.maps == make(tmp_path / "again").maps


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_folder_above_changes_nothing(tmp_path: Path, name: str) -> None:
    """Archives and download tools leave such folders."""
    make, layout, kind = LAYOUTS[name]
    right = make(tmp_path / "set" / "archive" / "data")
    reading = recognise(tmp_path / "set")
    assert {one.removeprefix("archive/data/") for one in reading.photographs} == right.photographs
    assert reading.layout.name == layout
    if kind is not None:
        assert reading.settings is not None
        assert str(reading.settings["root"]).startswith(str(tmp_path / "set" / "archive" / "data"))


@pytest.mark.parametrize("name", [name for name in LAYOUTS if name not in {"photographs"}])
@pytest.mark.parametrize("split", ["train", "val"])
def test_one_split_alone(tmp_path: Path, name: str, split: str) -> None:
    """No label map becomes a photograph, and none gets another layout that has labels."""
    make, _, kind = LAYOUTS[name]
    reading = read_as(tmp_path, make(tmp_path, (split,)))
    assert reading.layout.kind in {kind, None}


@pytest.mark.parametrize("name", LAYOUTS)
def test_two_in_one_folder_are_refused_with_both_readings(tmp_path: Path, name: str) -> None:
    other = "class folders" if name != "class folders" else "voc"
    for inner, which in (("one", name), ("two", other)):
        LAYOUTS[which][0](tmp_path / inner)
    with pytest.raises(DataError) as caught:
        recognise(tmp_path)
    assert caught.value.exit_code == 3
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("one", LAYOUTS)
@pytest.mark.parametrize(
    "other",
    [
        "voc",
        "class folders",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("coco", "pairs", "cvat images", "lists")),
    ],
)
def test_two_merged_in_one_folder(tmp_path: Path, one: str, other: str) -> None:
    """Refused, or all their photographs are taken: never a label map, and never a part of either."""
    if {one, other} == {"class folders", "roboflow coco"}:
        pytest.skip("their files cannot be told apart: a class folder mask lies in the split of the other")
    photos: frozenset[str] = frozenset()
    for name in (one, other):
        with suppress(IsADirectoryError):
            photos |= LAYOUTS[name][0](tmp_path).photographs
    with suppress(DataError):
        assert set(recognise(tmp_path).photographs) == photos


@pytest.mark.parametrize("name", [name for name in LAYOUTS if name not in {"photographs", "lists"}])
def test_photographs_beside_a_data_set_are_a_mixture(tmp_path: Path, name: str) -> None:
    LAYOUTS[name][0](tmp_path / "set")
    for at in range(12):
        photo(tmp_path / "holiday" / f"h{at}.jpg", 700 + at)
    if LAYOUTS[name][2] is None and name in {"cvat images", "yolo"}:
        pytest.skip("all images below it are photographs")
    with pytest.raises(DataError) as caught:
        recognise(tmp_path)
    assert "holiday" in str(caught.value)


@pytest.mark.parametrize(("images", "masks"), [
    ("img", "gt"), ("rgb", "labels"), ("photos", "SegmentationMasks"), ("a", "b"), ("JPEGs", "annotations_png"),
    ("Images", "Masks"), ("x_input", "x_target"),
])  # fmt: skip
@pytest.mark.parametrize("mode", ["L", "P", "RGB", "I;16", "depth"])
@pytest.mark.parametrize("nested", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_pairs_by_any_name(tmp_path: Path, images: str, masks: str, mode: str, nested: bool) -> None:
    right = made.pairs(tmp_path, images=images, masks=masks, mode=mode, nested=nested)
    reading = read_as(tmp_path, right)
    assert reading.layout.kind == "masks"
    assert reading.settings is not None
    assert {reading.settings["images"], reading.settings["masks"]} == {
        f"{{split}}/{part}" if nested else f"{part}/{{split}}" for part in (images, masks)
    }


def test_depth_in_8_bits_is_told_by_names_and_pairs(tmp_path: Path) -> None:
    read_as(tmp_path, made.pairs(tmp_path, images="rgb", masks="depth", mode="depth8"))


@pytest.mark.parametrize("suffix", ["_mask", "_seg", "-label", "_gt", ".mask", "_L", " mask"])
@pytest.mark.parametrize("ending", ["jpg", "png"])
def test_pairs_by_an_ending(tmp_path: Path, suffix: str, ending: str) -> None:
    right = made.suffixed(tmp_path, suffix=suffix, ending=ending)
    if suffix == "_L" and ending == "png":
        return  # nothing but the looks of every second file: a question
    read_as(tmp_path, right)


@pytest.mark.parametrize(("image", "depth"), [("rgb_{:05d}", "sync_depth_{:05d}"), ("{:04d}_colors", "{:04d}_depth")])
@pytest.mark.parametrize("listed", [True, False])
def test_depth_beside_its_picture(tmp_path: Path, image: str, depth: str, listed: bool) -> None:
    names = [f"bath/{image.format(at)}.png" for at in range(6)]
    lines = []
    for at, name in enumerate(names):
        photo(tmp_path / "train" / name, at)
        label_map(tmp_path / "train" / "bath" / f"{depth.format(at)}.png", at, "depth")
        lines.append(f"/{name} /bath/{depth.format(at)}.png 518.8\n")
    if listed:
        for split in ("train", "test"):
            made.text(tmp_path / f"nyu_{split}.txt", "".join(lines))
    reading = read_as(tmp_path, Made(frozenset(f"train/{name}" for name in names), 6))
    assert reading.layout.kind == ("nyu" if listed else None)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("splits", [("train", "val"), ("train", "valid", "test"), ("val",)])
def test_yolo_nested_either_way(tmp_path: Path, nested: bool, splits: tuple[str, ...]) -> None:
    assert read_as(tmp_path, made.yolo(tmp_path, splits, nested=nested)).layout.name == "YOLO"


@pytest.mark.parametrize("resolution", ["480p", "1080p", "Full-Resolution"])
def test_videos_at_any_resolution(tmp_path: Path, resolution: str) -> None:
    reading = read_as(tmp_path, made.davis(tmp_path, resolution=resolution))
    assert reading.layout.kind == ("davis" if resolution == "480p" else None)


def test_cityscapes_with_each_archive_in_a_folder_of_its_own(tmp_path: Path) -> None:
    right = made.cityscapes(tmp_path)
    for name in ("leftImg8bit", "gtFine"):
        (tmp_path / f"{name}_trainvaltest").mkdir()
        (tmp_path / name).rename(tmp_path / f"{name}_trainvaltest" / name)
    reading = recognise(tmp_path)
    assert {name.removeprefix("leftImg8bit_trainvaltest/") for name in reading.photographs} == right.photographs
    assert reading.maps == right.maps


def test_trimaps_of_pets(tmp_path: Path) -> None:
    for at in range(6):
        photo(tmp_path / "images" / f"Abyssinian_{at}.jpg", at)
        label_map(tmp_path / "annotations" / "trimaps" / f"Abyssinian_{at}.png", at, "L")
        made.text(tmp_path / "annotations" / "xmls" / f"Abyssinian_{at}.xml", made.VOC_XML)
    read_as(tmp_path, Made(frozenset(f"images/Abyssinian_{at}.jpg" for at in range(6)), 6))


@pytest.mark.parametrize(
    "names", [("with_mask", "without_mask"), ("mask", "no_mask"), ("gt", "suv"), ("parts", "whole")]
)
@pytest.mark.parametrize("ending", ["jpg", "png"])
def test_classes_that_are_called_as_labels_are(tmp_path: Path, names: tuple[str, str], ending: str) -> None:
    right = []
    for number, name in enumerate((*names, *names)):
        for at in range(4):
            right.append(f"{'val' if number > 1 else 'train'}/{name}/{at}.{ending}")
            photo(tmp_path / right[-1], 10 * number + at)
    reading = read_as(tmp_path, Made(frozenset(right)))
    assert reading.layout.kind == "folder"


@pytest.mark.parametrize("inner", ["", "VOC2012", "VOC2007", "VOCdevkit/VOC2007", "mine", "data/VOC2010"])
@pytest.mark.parametrize("boxes", [True, False])
def test_voc_wherever_it_begins(tmp_path: Path, inner: str, boxes: bool) -> None:
    reading = read_as(tmp_path, made.voc(tmp_path, inner=inner, boxes=boxes))
    assert reading.layout.kind == "voc"


@pytest.mark.parametrize(("images", "json"), [
    ("images/{}", "annotations/instances_{}.json"), ("{}", "annotations/{}.json"), ("{}", "{}.json"),
    ("images/{}", "labels/coco_{}_v2.json"), ("{}/images", "{}/boxes.json"),
])  # fmt: skip
@pytest.mark.parametrize("val", ["val", "valid", "validation"])
def test_coco_by_any_name(tmp_path: Path, images: str, json: str, val: str) -> None:
    reading = read_as(tmp_path, made.coco(tmp_path, ("train", val), images=images, json=json))
    assert reading.settings is not None
    assert reading.layout.kind == "coco"
    config = dataset_of(dict(reading.settings))
    assert [len(open_labels(DETECTION, config, split)) for split in ("train", "val")] == [3, 3]


def test_coco_with_folders_joined_on_windows(tmp_path: Path) -> None:
    for split in ("train", "val"):
        for at in range(3):
            photo(tmp_path / "images" / split / f"{at}.jpg", at)
        names = [f"images\\{split}\\{at}.jpg" for at in range(3)]
        made.text(tmp_path / "annotations" / f"{split.upper()}.JSON", made.coco_json(names))
    settings = recognise(tmp_path).settings
    assert settings is not None
    assert settings["kind"] == "coco"
    opened = open_labels(DETECTION, dataset_of(dict(settings)), "train")
    assert [path.relative_to(tmp_path).as_posix() for path in opened.image_paths] == [
        f"images/train/{at}.jpg" for at in range(3)
    ]


def test_one_json_of_all_images(tmp_path: Path) -> None:
    for at in range(3):
        photo(tmp_path / "pictures" / f"{at}.jpg", at)
    made.text(tmp_path / "labels.json", made.coco_json(["0.jpg", "1.jpg", "2.jpg"]))
    reading = recognise(tmp_path)
    assert reading.settings == {
        "kind": "coco_json", "root": str(tmp_path / "pictures"), "annotations": "../labels.json",
    }  # fmt: skip


@pytest.mark.parametrize("val", ["val", "valid", "Validation", "val2", "val_3"])
@pytest.mark.parametrize("train", ["train", "training", "Train", "train1"])
def test_names_of_splits_of_class_folders(tmp_path: Path, train: str, val: str) -> None:
    reading = read_as(tmp_path, made.class_folders(tmp_path, (train, val), ending="jpg"))
    assert reading.settings == {"kind": "folder", "root": str(tmp_path)}


def test_photographs_and_label_maps_that_nothing_but_looks_tells_apart(tmp_path: Path) -> None:
    for at in range(6):
        photo(tmp_path / "a" / f"p{at}.png", at)
        label_map(tmp_path / "b" / f"q{at}.png", at, "RGB")
    with pytest.raises(DataError, match=r"6 photographs and 6 label maps \(by content, of b\) or as 12 photographs"):
        recognise(tmp_path)
    (tmp_path / "b").rename(tmp_path / "masks")
    read_as(tmp_path, Made(frozenset(f"a/p{at}.png" for at in range(6)), 6))


@pytest.mark.parametrize("more", ["test/t{}.jpg", "unlabeled/u{}.jpg"])
def test_class_folders_with_pictures_that_have_none(tmp_path: Path, more: str) -> None:
    right = made.class_folders(tmp_path, ending="jpg")
    names = [more.format(at) for at in range(30)]
    for at, name in enumerate(names):
        photo(tmp_path / name, 900 + at)
    reading = read_as(tmp_path, Made(right.photographs | set(names)))
    assert reading.settings == {"kind": "folder", "root": str(tmp_path)}


def test_a_folder_of_pictures_is_read_as_it_is_listed(tmp_path: Path) -> None:
    """A training on such a folder keeps its key, so it is not repeated."""
    for name in ("a/é.jpg", "a/b/2.png", "Z.webp", "0.gif", "logo.bmp"):
        photo(tmp_path / name, len(name))
    label_map(tmp_path / "a" / "drawing.png", 3)
    assert recognise(tmp_path).photographs == list_images(tmp_path)
    made.class_folders(tmp_path / "c", ending="jpg")
    photo(tmp_path / "c" / "cover.jpg", 77)
    assert recognise(tmp_path / "c").photographs == list_images(tmp_path / "c")


def test_a_folder_of_masks_alone(tmp_path: Path) -> None:
    for at in range(6):
        label_map(tmp_path / "SegmentationClass" / f"q{at}.png", at)
    for root in (tmp_path, tmp_path / "SegmentationClass"):
        with pytest.raises(DataError, match="holds label maps"):
            recognise(root)
    (tmp_path / "SegmentationClass").rename(tmp_path / "drawings")
    reading = recognise(tmp_path / "drawings")
    assert len(reading.photographs) == 6, "drawings may be what is trained on"
    assert reading.noteworthy


@pytest.mark.skipif(not (SHARED / "data").is_dir(), reason="needs ../shared/data")
def test_no_photograph_is_taken_for_a_label_map() -> None:
    """Real photographs are read as they are listed, and real label maps are told."""
    for name in (
        "imagenette_mini",
        "coco_mini/train2017",
        "coco_mini/val2017",
        "voc_mini/VOCdevkit/VOC2012/JPEGImages",
    ):
        folder = SHARED / "data" / name
        reading = recognise(folder)
        assert reading.photographs == list_images(folder)
        assert not reading.noteworthy
    for name, (count, maps) in {"voc_mini": (252, 404), "ade_mini": (17, 17), "coco_mini": (176, 21)}.items():
        reading = recognise(SHARED / "data" / name)
        assert (len(reading.photographs), reading.maps, reading.others) == (count, maps, 0)


@pytest.mark.skipif(not (SHARED / "cases").is_dir(), reason="needs ../shared/cases")
@pytest.mark.parametrize(
    ("case", "kind", "count", "maps"),
    [
        ("voc_as_photographs", "voc", 8, 16),
        ("voc_masks_without_boxes", "voc", 4, 4),
        ("coco_other_file_names/c", "coco", 2, 2),
        ("coco_other_file_names", "coco", 2, 2),
        ("extensions_passed_over", None, 10, 0),
        ("one_tiny_image_pretrain", None, 49, 0),
        ("one_tiny_image_tokencut", "coco_json", 4, 0),
        ("ade20k_already_reduced", "ade20k", 12, 12),
        ("boxes_upright_exif3/upright3", "coco_json", 4, 0),
        ("masks_upright_exif3", "masks", 8, 8),
        ("same_images_in_train_and_val", "folder", 32, 0),
        ("byte_order_mark/voc", "voc", 4, 4),
    ],
)
def test_shared_cases(case: str, kind: str | None, count: int, maps: int) -> None:
    reading = recognise(SHARED / "cases" / case)
    assert (reading.layout.kind, len(reading.photographs), reading.maps) == (kind, count, maps)


def test_what_is_passed_over_is_counted(tmp_path: Path) -> None:
    photo(tmp_path / "a.jpg", 0)
    for name in ("b.heic", "c.HEIC", "d.pdf", "noext", "e.txt", "README", ".hidden.heic"):
        (tmp_path / name).write_bytes(b"x")
    reading = recognise(tmp_path)
    assert reading.passed == "2 .heic, 1 .pdf, 1 without extension"
    assert reading.passed in reading.line


@pytest.mark.parametrize("name", ["a.parquet", "a.zip", "a.tar.gz", "a.h5", "notes.txt"])
def test_no_images_but_something_else(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(DataError) as caught:
        recognise(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_one_photograph_a_key_of_shards(tmp_path: Path) -> None:
    right = made.shards(tmp_path)
    shards = TarShards.open(tmp_path)
    assert set(shards.names) == right.photographs
    assert shards.read(0).shape == (*made.SIZE, 3)
    assert len(TarShards.open(tmp_path / "part-0.tar")) == 4
