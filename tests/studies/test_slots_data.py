"""Packed data: equal shares of classes, boxes and masks at their new size, the same bytes twice, a limit."""

from __future__ import annotations

import json
import zipfile
import zlib
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from dinoskip.data.sets import open_labels
from dinoskip.data.sets.labels import DETECTION, SEGMENTATION
from dinoskip.errors import ConfigError, DataError
from dinoskip.pipeline.study import study_of
from dinoskip.settings.config import apply_overrides, read_yaml
from studies import slots_arms, slots_data
from studies.slots_data import NAMES, Sources, choose, pack, read_names, sizes_below, unpacked, write_names

CONFIG = Path(__file__).parents[2] / slots_arms.CONFIG


def test_names_are_all_or_as_many_of_each_class() -> None:
    sizes = {f"{kind}/{i}": 10 for kind in "abc" for i in range(4)}
    assert choose(sizes, 120) == sorted(sizes)
    assert choose(sizes, 75) == ["a/0", "a/1", "b/0", "b/1", "c/0", "c/1"]
    assert choose(sizes, 5) == []


def test_the_committed_list_is_of_ten_classes(tmp_path: Path) -> None:
    names = read_names()
    assert len(names) == len(set(names)) == 9469
    assert len({name.partition("/")[0] for name in names}) == 10
    write_names(names, tmp_path / "again.gz")
    assert (tmp_path / "again.gz").read_bytes() == NAMES.read_bytes()


def picture(path: Path, size: tuple[int, int], box: tuple[int, int, int, int] | None = None) -> None:
    """A picture of blocks, with an object of one colour in ``box``: boxes are compared with edges."""
    path.parent.mkdir(parents=True, exist_ok=True)
    seed = zlib.crc32("/".join(path.parts[-3:]).encode())  # no two files are equal: a study would refuse them
    blocks = np.random.default_rng(seed).integers(0, 256, (7, 9, 3), np.uint8)
    image = Image.fromarray(blocks).resize(size, Image.Resampling.BICUBIC)
    if box is not None:
        image.paste((255, 0, 255), box)
    image.save(path)


def made_sources(root: Path, images: int = 1) -> Sources:
    """Two classes of photographs, a VOCdevkit of both years, and COCO; ``images`` of every list."""
    names = {2012: ("one", "two"), 2007: ("old",)}
    for split in ("train", "val"):
        for kind in "ab":
            for number in range(2 * images):
                picture(root / "imagenette" / split / kind / f"{number}.png", (40, 36))
    for year, stems in names.items():
        folder = root / "VOCdevkit" / f"VOC{year}"
        every = [f"{stem}{i or ''}" for i in range(images) for stem in stems]
        for name in every:
            picture(folder / "JPEGImages" / f"{name}.jpg", (500, 448), (0, 0, 250, 224))
            annotate(folder / "Annotations" / f"{name}.xml", (1, 1, 250, 224))
        write_list(folder / "ImageSets" / "Main" / "trainval.txt", every)
    folder = root / "VOCdevkit" / "VOC2012"
    for split, stem in (("train", "one"), ("val", "two")):
        every = [f"{stem}{i or ''}" for i in range(images)]
        write_list(folder / "ImageSets" / "Segmentation" / f"{split}.txt", every)
        labels = np.zeros((448, 500), np.uint8)
        labels[:224, :250] = 12
        (folder / "SegmentationClass").mkdir(exist_ok=True)
        for name in every:
            Image.fromarray(labels).save(folder / "SegmentationClass" / f"{name}.png")
    for name in ("val2017", "train2014"):
        made_coco(root / "coco", name, images)
    return Sources(root / "imagenette", root / "VOCdevkit", root / "coco")


def write_list(path: Path, names: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(names))


def annotate(path: Path, corners: tuple[int, int, int, int]) -> None:
    root = ElementTree.Element("annotation")
    item = ElementTree.SubElement(root, "object")
    ElementTree.SubElement(item, "name").text = "dog"
    box = ElementTree.SubElement(item, "bndbox")
    for key, value in zip(("xmin", "ymin", "xmax", "ymax"), corners, strict=True):
        ElementTree.SubElement(box, key).text = str(value)
    path.parent.mkdir(parents=True, exist_ok=True)
    ElementTree.ElementTree(root).write(path)


def made_coco(root: Path, name: str, images: int) -> None:
    entries, boxes = [], []
    for number in range(1, images + 1):
        picture(root / name / f"small{number}.png", (100, 90), (10, 20, 40, 60))
        entries.append({"id": number, "file_name": f"small{number}.png", "height": 90, "width": 100})
        boxes.append({"id": number, "image_id": number, "category_id": 3, "bbox": [10, 20, 30, 40], "iscrowd": 0})
    content = {"images": entries, "annotations": boxes, "categories": [{"id": 3, "name": "dog"}]}
    (root / "annotations").mkdir(exist_ok=True)
    (root / "annotations" / f"instances_{name}.json").write_text(json.dumps(content))


@pytest.fixture
def sources(tmp_path: Path) -> Sources:
    return made_sources(tmp_path)


def test_the_study_opens_what_was_packed(sources: Sources, tmp_path: Path) -> None:
    names = choose(sizes_below(sources.imagenette / "train"), 10**6)
    counts = pack(sources, names, tmp_path / "slot.zip", 1)
    again = pack(sources, names, tmp_path / "again.zip", 1)
    assert (tmp_path / "slot.zip").read_bytes() == (tmp_path / "again.zip").read_bytes()
    assert {key: counts[key] for key in ("train", "val", "boxed", "masks")} == {
        "train": 4,
        "val": 4,
        "boxed": 5,
        "masks": 2,
    }
    assert again == counts
    folder = unpacked(tmp_path / "slot.zip", tmp_path / "work")
    settings = slots_arms.overrides(folder, tmp_path / "runs", 2, 30, toy=False)
    study, _ = study_of(apply_overrides(read_yaml(CONFIG), settings))
    boxed = open_labels(DETECTION, study.data["boxed"], "trainval")
    sizes = [Image.open(boxed.path(i)).size for i in range(len(boxed))]
    assert sizes == [(100, 90)] * 2 + [(250, 224)] * 3, "brought to a short side of 224, none enlarged"
    assert [boxed.boxes(i).tolist() for i in (0, 4)] == [[[10, 20, 40, 60]], [[0, 0, 125, 112]]]
    masks = open_labels(SEGMENTATION, study.data["voc_mini"], "val")
    assert masks.label(0).shape == (224, 250)
    assert int((masks.label(0) == 12).sum()) == 112 * 125
    assert len(masks.class_names) == 21


def test_what_cannot_be_carried_is_refused(sources: Sources, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"slot\.zip"):
        pack(sources, [], tmp_path / "slot.zip", 1e-4)
    assert not (tmp_path / "slot.zip").exists()


def test_data_are_a_folder_or_a_zip_that_is_unpacked_once(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "slot.zip", "w") as archive:
        archive.writestr("imagenette/train/a/0.txt", "x")
    folder = unpacked(tmp_path / "slot.zip", tmp_path / "work")
    (folder / "imagenette" / "train" / "a" / "0.txt").write_text("changed")
    assert unpacked(tmp_path / "slot.zip", tmp_path / "work") == folder
    assert (folder / "imagenette" / "train" / "a" / "0.txt").read_text() == "changed"
    assert unpacked(folder, tmp_path / "other") == folder
    (tmp_path / "text").write_text("no archive")
    with pytest.raises(DataError, match="text"):
        unpacked(tmp_path / "text", tmp_path / "work")
    assert slots_data.SHORT_SIDE == 224
