"""The border of every labelled kind: one violation in a valid set is one line that names the file and the remedy."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dinoskip.data.sets import AnyDataset, open_depth, open_detection, open_keypoints, open_normals, open_sequences
from dinoskip.data.sets.check import check
from dinoskip.data.sets.coco_json import CocoJsonConfig
from dinoskip.data.sets.davis import DavisConfig
from dinoskip.data.sets.nyu import NyuConfig, NyuNormalsConfig
from dinoskip.data.sets.pf_pascal import PfPascalConfig
from dinoskip.data.sets.spair import SpairConfig
from dinoskip.data.sets.voc import VocConfig
from dinoskip.errors import DataError

HEIGHT, WIDTH = 10, 20


def picture(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (WIDTH, HEIGHT)).save(path)


def coco(root: Path) -> AnyDataset:
    for name in "ab":
        picture(root / f"{name}.png")
    images = [{"id": i, "file_name": f"{n}.png", "height": HEIGHT, "width": WIDTH} for i, n in ((1, "a"), (2, "b"))]
    boxes = [{"id": i, "image_id": i, "category_id": 3, "bbox": [1, 2, 5, 5], "iscrowd": 0} for i in (1, 2)]
    content = {"images": images, "annotations": boxes, "categories": [{"id": 3, "name": "dog"}]}
    (root / "annotations.json").write_text(json.dumps(content))
    return CocoJsonConfig(root=str(root))


def edited(change: Callable[[Any], object], name: str = "annotations.json") -> Callable[[Path], None]:
    def apply(root: Path) -> None:
        content = json.loads((root / name).read_text())
        change(content)
        (root / name).write_text(json.dumps(content))

    return apply


def voc(root: Path) -> AnyDataset:
    folder = root / "VOC2007"
    picture(folder / "JPEGImages" / "a.jpg")
    for part in ("Annotations", "ImageSets/Main"):
        (folder / part).mkdir(parents=True)
    (folder / "ImageSets" / "Main" / "trainval.txt").write_text("a\n")
    box = "<bndbox><xmin>2</xmin><ymin>3</ymin><xmax>12</xmax><ymax>9</ymax></bndbox>"
    (folder / "Annotations" / "a.xml").write_text(
        f"<annotation><size><width>{WIDTH}</width><height>{HEIGHT}</height></size>"
        f"<object><name>dog</name>{box}</object></annotation>"
    )
    return VocConfig(root=str(root), year=2007)


def voc_edit(old: str, new: str) -> Callable[[Path], None]:
    def apply(root: Path) -> None:
        path = root / "VOC2007" / "Annotations" / "a.xml"
        path.write_text(path.read_text().replace(old, new))

    return apply


def davis(root: Path) -> AnyDataset:
    for frame in range(4):
        picture(root / "JPEGImages" / "480p" / "bear" / f"{frame:05d}.jpg")
        mask = root / "Annotations" / "480p" / "bear" / f"{frame:05d}.png"
        mask.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.ones((HEIGHT, WIDTH), np.uint8)).save(mask)
    (root / "ImageSets" / "2017").mkdir(parents=True)
    for split in ("train", "val"):
        (root / "ImageSets" / "2017" / f"{split}.txt").write_text("bear\n")
    return DavisConfig(root=str(root))


def nyu(root: Path) -> AnyDataset:
    picture(root / "in" / "a.png")
    picture(root.parent / "outside.png")
    for path in (root / "in" / "d.png", root.parent / "outside_depth.png"):
        Image.fromarray(np.full((HEIGHT, WIDTH), 2000, np.uint16)).save(path)
    for split in ("train", "test"):
        (root / f"nyu_{split}.txt").write_text("in/a.png in/d.png 518\n")
    return NyuConfig(root=str(root))


def nyu_list(line: str) -> Callable[[Path], object]:
    return lambda root: (root / "nyu_test.txt").write_text(line)


def normals(root: Path) -> AnyDataset:
    save_normals()(root)
    return NyuNormalsConfig(root=str(root))


def save_normals(**arrays: Any) -> Callable[[Path], None]:
    def apply(root: Path) -> None:
        (root / "test").mkdir(parents=True, exist_ok=True)
        plain = {
            "image": np.zeros((HEIGHT, WIDTH, 3), np.uint8),
            "depth": np.full((HEIGHT, WIDTH), 2.0),
            "normals": np.dstack([np.zeros((HEIGHT, WIDTH, 2)), -np.ones((HEIGHT, WIDTH))]),
        }
        np.savez(root / "test" / "a.npz", **(plain | arrays))

    return apply


def spoilt(shape: tuple[int, ...], value: float) -> np.ndarray:
    values = np.ones(shape)
    values[0, 0] = value
    return values


def spair(root: Path) -> AnyDataset:
    for name in "ab":
        picture(root / "JPEGImages" / "cat" / f"{name}.jpg")
    entry = {
        "category": "cat", "src_imname": "a.jpg", "trg_imname": "b.jpg",
        "src_imsize": [WIDTH, HEIGHT, 3], "trg_imsize": [WIDTH, HEIGHT, 3], "trg_bndbox": [2, 3, 12, 7],
        "src_kps": [[1, 2], [3, 4]], "trg_kps": [[5, 6], [7, 8]],
    }  # fmt: skip
    for part in ("PairAnnotation/test", "Layout/large"):
        (root / part).mkdir(parents=True)
    (root / PAIR).write_text(json.dumps(entry))
    (root / "Layout" / "large" / "test.txt").write_text("0-a-b_cat\n")
    return SpairConfig(root=str(root))


PAIR = "PairAnnotation/test/0-a-b_cat.json"


def pf_pascal(root: Path) -> AnyDataset:
    for name in "ab":
        picture(root / "JPEGImages" / f"{name}.jpg")
    pf_row()(root)
    return PfPascalConfig(root=str(root))


def pf_row(**changes: str) -> Callable[[Path], None]:
    def apply(root: Path) -> None:
        row = {"source": "JPEGImages/a.jpg", "target": "JPEGImages/b.jpg", "class": "1", "XA": "1;2", "YA": "3;4",
               "XB": "5;6", "YB": "7;8"} | changes  # fmt: skip
        with open(root / "test_pairs_pf_pascal.csv", "w", newline="") as stream:
            csv.writer(stream).writerows([row.keys(), row.values()])

    return apply


def read_everything(config: AnyDataset) -> None:
    """Open and read a test split as an evaluation does."""
    if isinstance(config, CocoJsonConfig | VocConfig):
        boxes = open_detection(config, "trainval")
        for index in range(len(boxes)):
            boxes.boxes(index)
    elif isinstance(config, DavisConfig):
        videos = open_sequences(config, "val")
        for index in range(len(videos)):
            videos.label(index)
    elif isinstance(config, NyuConfig):
        depth = open_depth(config, "test")
        for index in range(len(depth)):
            depth.depth(index)
    elif isinstance(config, NyuNormalsConfig):
        directions = open_normals(config, "test")
        for index in range(len(directions)):
            directions.read(index)
    else:
        open_keypoints(config, "test")


Case = tuple[Callable[[Path], AnyDataset], Callable[[Path], object], str]
DAVIS = "480p/bear/0000"
CASES: dict[str, Case] = {
    "coco image id": (coco, edited(lambda c: c["annotations"][0].update(image_id=9)), "image 9 is not in it"),
    "coco ids twice": (coco, edited(lambda c: c["images"][0].update(id=2)), "image 2 is listed twice"),
    "coco annotation twice": (coco, edited(lambda c: c["annotations"][0].update(id=2)), "annotation 2 is listed twice"),
    "coco category twice": (
        coco, edited(lambda c: c["categories"].append({"id": 3, "name": "cat"})), "category 3 is listed twice",
    ),
    "coco box": (coco, edited(lambda c: c["annotations"][0].update(bbox=[1, 2, 50, 5])), "lie outside the image"),
    "coco box left": (coco, edited(lambda c: c["annotations"][1].update(bbox=[-9, 2, 15, 5])), "lie outside the image"),
    "coco size": (coco, edited(lambda c: c["images"][0].update(height=WIDTH, width=HEIGHT)), "the file has 20×10"),
    "coco size text": (coco, edited(lambda c: c["images"][0].update(height="10")), "the file has 20×10"),
    "coco crowd": (coco, edited(lambda c: c["annotations"][0].update(iscrowd="0")), "iscrowd"),
    "voc box": (voc, voc_edit("<xmax>12", "<xmax>120"), "lie outside the image of 20×10"),
    "voc size": (voc, voc_edit(f"<width>{WIDTH}", "<width>300"), "the file has 20×10"),
    "davis frame": (davis, lambda root: (root / f"JPEGImages/{DAVIS}2.jpg").unlink(), "has a mask and no frame"),
    "davis both": (
        davis,
        lambda root: list(map(Path.unlink, root.glob(f"*/{DAVIS}2.*"))),
        "frames are not numbered evenly",
    ),
    "davis twice": (davis, lambda root: (root / "ImageSets/2017/val.txt").write_text("bear\nbear\n"), "listed twice"),
    "davis climbs": (davis, lambda root: (root / "ImageSets/2017/val.txt").write_text("a/../../bear\n"), "outside"),
    "nyu image": (nyu, nyu_list("../outside.png in/d.png 518\n"), "points outside"),
    "nyu depth": (nyu, nyu_list("in/a.png /in/../../outside_depth.png 518\n"), "points outside"),
    "nyu twice": (nyu, nyu_list("in/a.png in/d.png 518\n" * 2), "'in/a.png' is listed twice"),
    "normals nan": (normals, save_normals(normals=spoilt((HEIGHT, WIDTH, 3), np.nan)), "normals are not finite"),
    "normals depth": (normals, save_normals(depth=spoilt((HEIGHT, WIDTH), np.nan)), "depths are not finite"),
    "normals float image": (normals, save_normals(image=spoilt((HEIGHT, WIDTH, 3), np.nan)), "uint8"),
    "normals wide image": (normals, save_normals(image=np.full((HEIGHT, WIDTH, 3), 1000)), "uint8"),
    "normals grey": (normals, save_normals(image=np.zeros((HEIGHT, WIDTH), np.uint8)), "uint8"),
    "normals text": (normals, save_normals(normals=np.full((HEIGHT, WIDTH, 3), "a")), "normals are not numbers"),
    "spair infinite": (
        spair, edited(lambda c: c.update(trg_bndbox=[2, 3, float("inf"), 7]), PAIR), "trg_bndbox are not finite",
    ),
    "spair box": (spair, edited(lambda c: c.update(trg_bndbox=[2, 3, 120, 7]), PAIR), "lie outside the image"),
    "spair far": (spair, edited(lambda c: c.update(trg_kps=[[5, 6], [1e6, 8]]), PAIR), "lie outside the image"),
    "spair none": (spair, edited(lambda c: c.update(src_kps=[], trg_kps=[]), PAIR), "no keypoints"),
    "spair size": (spair, edited(lambda c: c.update(src_imsize=[HEIGHT, WIDTH, 3]), PAIR), "the file has 20×10"),
    "spair twice": (
        spair, lambda root: (root / "Layout/large/test.txt").write_text("0-a-b_cat\n0-a-b_cat\n"), "listed twice",
    ),
    "pf class 0": (pf_pascal, pf_row(**{"class": "0"}), "not a pair of PF-PASCAL"),
    "pf class inf": (pf_pascal, pf_row(**{"class": "inf"}), "not a pair of PF-PASCAL"),
    "pf lengths": (pf_pascal, pf_row(XA="1"), "not a pair of PF-PASCAL"),
    "pf far": (pf_pascal, pf_row(XB="5;600"), "lie outside the image"),
    "pf none": (pf_pascal, pf_row(XA="", YA="", XB="", YB=""), "no keypoints"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_violation_is_one_line(tmp_path: Path, case: str) -> None:
    make, spoil, text = CASES[case]
    root = tmp_path / "set"
    root.mkdir()
    config = make(root)
    read_everything(config)  # valid so far
    spoil(root)
    with pytest.raises(DataError, match=text) as caught:
        read_everything(config)
    assert str(root) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert any(text in fault for row in check(config) for fault in row.faults), "data check"
