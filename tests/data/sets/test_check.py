from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dinoskip.cli import main
from dinoskip.data import Ade20kConfig, Coco20kConfig, CocoJsonConfig, CocoStuffConfig, MasksConfig, VocConfig, check
from dinoskip.data.recognise.words import unread_container
from dinoskip.data.sets.images import ImagesConfig
from dinoskip.data.sets.scenes import ScenesConfig
from dinoskip.data.shards import TarShards
from dinoskip.errors import DataError
from dinoskip.pipeline.look.study import labels_of
from tests.helpers import folders_people_have as made


def write(root: Path, images: str, masks: str, count: int, value: int) -> None:
    for number in range(count):
        for folder, array in (
            (images, np.zeros((4, 6, 3), np.uint8)),
            (masks, np.full((4, 6), value, np.uint8)),
        ):
            (root / folder).mkdir(parents=True, exist_ok=True)
            Image.fromarray(array).save(root / folder / f"i{number:02}.png")


def test_images_smaller_than_a_patch_are_named(tmp_path: Path) -> None:
    for name, side in (("a", 32), ("b", 15)):
        Image.fromarray(np.zeros((side, 40, 3), np.uint8)).save(tmp_path / f"{name}.png")
    (row,) = check(ImagesConfig(root=str(tmp_path)))
    assert row.ok
    assert [note for note in row.notes if "b.png (40×15)" in note]
    Image.fromarray(np.zeros((16, 16, 3), np.uint8)).save(tmp_path / "b.png")
    assert not check(ImagesConfig(root=str(tmp_path)))[0].notes


def test_a_stated_range_of_pixels_is_read_with(tmp_path: Path) -> None:
    Image.fromarray(np.linspace(0, 4095, 32 * 32).reshape(32, 32).astype(np.uint16)).save(tmp_path / "a.png")
    assert check(ImagesConfig(root=str(tmp_path)))[0].fault_count == 1
    (row,) = check(ImagesConfig(root=str(tmp_path), pixel_range=4095))
    assert (row.found, row.sampled, row.faults) == (1, 1, [])


def test_shards_are_counted_and_decoded(tmp_path: Path) -> None:
    made.shards(tmp_path)
    (row,) = check(ImagesConfig(root=str(tmp_path)))
    assert row.ok
    assert (row.found, row.sampled) == (len(TarShards.open(tmp_path)),) * 2


def test_a_damaged_image_of_a_shard_is_a_fault_by_name(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as shard:
        member = tarfile.TarInfo("x.jpg")
        member.size = 4
        shard.addfile(member, io.BytesIO(b"none"))
    (row,) = check(ImagesConfig(root=str(tmp_path)))
    assert row.fault_count == 1
    assert "a.tar/x.jpg" in row.faults[0]


@pytest.mark.parametrize("name", ["a.zip", "a.tar.gz", "a.parquet", "a.h5"])
def test_an_archive_in_the_place_of_a_folder_comes_with_advice(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"x")
    for read in (lambda: check(ImagesConfig(root=str(path))), lambda: TarShards.open(path), lambda: labels_of(path)):
        with pytest.raises(DataError) as caught:
            read()
        assert str(path) in str(caught.value)
        assert caught.value.hint == unread_container(name)


def test_pairs_sizes_and_values_are_faults_by_path(tmp_path: Path) -> None:
    for part in ("training", "validation"):
        write(tmp_path, f"images/{part}", f"annotations/{part}", 20, 1)
    masks = tmp_path / "annotations" / "training"
    (masks / "i00.png").unlink()
    (tmp_path / "images" / "training" / "i01.png").unlink()
    Image.fromarray(np.ones((6, 4), np.uint8)).save(masks / "i02.png")
    Image.fromarray(np.full((4, 6), 200, np.uint8)).save(masks / "i03.png")
    train, val = check(Ade20kConfig(root=str(tmp_path), subset=3000), sample=None)
    assert (train.found, train.expected, train.sampled, train.fault_count, train.ok) == (18, 20210, 18, 4, False)
    places = [fault.partition(":")[0].rpartition("annotations/")[2].rpartition("images/")[2] for fault in train.faults]
    assert places == ["training/i01.png", "training/i00.png", "training/i02.png", "training/i03.png"]
    for fault, part in zip(train.faults, ("no image", "no mask", "4×6 pixels", "label value 200"), strict=True):
        assert part in fault
    assert (val.found, val.expected, val.fault_count) == (20, 2000, 0)
    assert val.lines()[0] == "ade20k segmentation val: 20 images of 2,000 expected, 20 read: doubtful"
    assert val.classes["wall"] == 20 * 24
    assert val.lines()[1].startswith("  wall 100.0 %")
    assert val.lines()[1].endswith("1 of 150 classes occur")


def test_no_more_than_ten_faults_are_shown(tmp_path: Path) -> None:
    write(tmp_path, "train2017", "stuffthingmaps/train2017", 15, 181)
    for mask in (tmp_path / "stuffthingmaps" / "train2017").iterdir():
        if mask.name > "i01.png":
            mask.unlink()
    train, val = check(CocoStuffConfig(root=str(tmp_path), classes="27"))
    assert (train.dataset, train.found, train.expected, train.fault_count, len(train.faults)) == (
        "coco_stuff27", 2, 118287, 13, 10,
    )  # fmt: skip
    assert train.classes["solid"] == 2 * 24
    assert (val.found, val.fault_count) == (0, 1)  # the split is not there at all
    assert "val2017" in val.faults[0]


def test_missing_files_of_lists_are_all_named(voc_tree: Path) -> None:
    folder = voc_tree / "VOC2012"
    for name in ("JPEGImages/a1.jpg", "SegmentationClass/a2.png", "Annotations/a3.xml"):
        (folder / name).unlink()
    train, _, _, boxes = check(VocConfig(root=str(voc_tree)))
    assert [fault.partition(":")[0] for fault in train.faults] == [
        str(folder / "JPEGImages" / "a1.jpg"), str(folder / "SegmentationClass" / "a2.png"),
    ]  # fmt: skip
    assert (train.found, boxes.found, boxes.fault_count) == (0, 1, 2)


def test_a_set_of_other_classes_in_the_layout_of_voc_has_no_published_numbers(voc_tree: Path, tmp_path: Path) -> None:
    assert [row.expected for row in check(VocConfig(root=str(voc_tree)))] == [1464, 1449, 10_582, 11_540]
    ScenesConfig(images=6, size=64).generate(tmp_path / "own")
    rows = check(VocConfig(root=str(tmp_path / "own")))
    assert [(row.expected, row.ok) for row in rows] == [(None, True)] * len(rows)
    assert [len(row.notes) for row in rows] == [1, *[0] * (len(rows) - 1)], "said once"


def test_boxes_and_own_masks(tmp_path: Path) -> None:
    write(tmp_path, "train2014", "masks", 3, 1)
    (tmp_path / "classes.txt").write_text("off\non\n")
    (row,) = check(MasksConfig(root=str(tmp_path), images="train2014", masks="masks"))
    assert (row.split, row.found, row.expected, row.ok, row.classes) == ("all", 3, None, True, {"off": 0, "on": 72})
    (tmp_path / "annotations").mkdir()
    content = {
        "images": [{"id": n, "file_name": f"i{n:02}.png"} for n in range(4)],
        "annotations": [{"id": 1, "image_id": 1, "category_id": 3, "bbox": [1, 1, 2, 2]}],
        "categories": [{"id": 3, "name": "dog"}],
    }
    path = tmp_path / "annotations" / "instances_train2014.json"
    path.write_text(json.dumps(content))
    (tmp_path / "list.txt").write_text("train2014/i01.png\ntrain2014/i03.png\n")
    (row,) = check(Coco20kConfig(root=str(tmp_path), filenames="list.txt"))
    assert (row.dataset, row.split, row.found, row.expected, row.classes) == (
        "coco20k",
        "train2014",
        1,
        19817,
        {"dog": 1},
    )
    assert [text.partition(": ")[2][:11] for text in row.faults] == ["missing, bu", "not the pub"]
    (row,) = check(CocoJsonConfig(root=str(tmp_path / "train2014"), annotations=str(path)))
    assert (row.dataset, row.found, row.fault_count) == ("instances_train2014", 3, 1)


def test_the_command_takes_settings_of_the_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for part in ("train2017", "val2017"):
        write(tmp_path, part, f"stuffthingmaps/{part}", 2, 181)
    given = [
        "data",
        "check",
        "coco_stuff",
        "--data",
        str(tmp_path),
        "--sample",
        "1",
        "classes=27",
        "--accept",
        "equal-files:coco_stuff27",
    ]
    assert main([*given, "--json"]) == 0
    train, val = json.loads(capsys.readouterr().out)
    assert (train["dataset"], train["found"], train["sampled"], len(val["classes"])) == ("coco_stuff27", 2, 1, 27)
    (tmp_path / "val2017" / "i00.png").unlink()
    assert main(given) == 3
    assert "i00.png: this mask has no image" in capsys.readouterr().out
