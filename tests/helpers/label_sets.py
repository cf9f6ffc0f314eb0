"""Small valid sets of the core's labelled kinds, to be spoilt in one place; and what an evaluation reads of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from dinoskip.data.sets import AnyDataset, open_labels
from dinoskip.data.sets.ade20k import Ade20kConfig
from dinoskip.data.sets.cityscapes import CityscapesConfig
from dinoskip.data.sets.coco20k import Coco20kConfig
from dinoskip.data.sets.coco_json import CocoJsonConfig
from dinoskip.data.sets.coco_panoptic import CocoPanopticConfig
from dinoskip.data.sets.coco_stuff import CocoStuffConfig
from dinoskip.data.sets.labels import DETECTION, SEGMENTATION
from dinoskip.data.sets.masks import MasksConfig
from dinoskip.data.sets.pascal_context import PascalContextConfig
from dinoskip.data.sets.saliency import EcssdConfig
from dinoskip.data.sets.voc import VocConfig

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


def coco20k(root: Path) -> AnyDataset:
    coco(root)
    (root / "train2014").mkdir()
    (root / "a.png").rename(root / "train2014" / "a.png")
    (root / "b.png").unlink()
    content = json.loads((root / "annotations.json").read_text())
    content = {**content, "images": content["images"][:1], "annotations": content["annotations"][:1]}
    (root / "annotations").mkdir()
    (root / "annotations.json").unlink()
    (root / COCO20K).write_text(json.dumps(content))
    (root / "coco_20k_filenames.txt").write_text("train2014/a.png\n")
    return Coco20kConfig(root=str(root))


COCO20K = "annotations/instances_train2014.json"


def mask(path: Path, low: int = 1, high: int = 2) -> None:
    """A label map, its left half of one value and its right half of another."""
    path.parent.mkdir(parents=True, exist_ok=True)
    values = np.full((HEIGHT, WIDTH), low, np.uint8)
    values[:, WIDTH // 2 :] = high
    Image.fromarray(values).save(path)


def panoptic(root: Path) -> AnyDataset:
    for name in "ab":
        picture(root / "val2017" / f"{name}.jpg")
        segments = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
        segments[:, :9, 0], segments[:, 9:, 1] = 7, 1
        maps = (root / PANOPTIC).with_suffix("")
        maps.mkdir(parents=True, exist_ok=True)
        Image.fromarray(segments).save(maps / f"{name}.png")
    info = [{"id": 7, "category_id": 3}, {"id": 256, "category_id": 4}]
    content = {
        "images": [{"id": i, "file_name": f"{n}.jpg"} for i, n in ((1, "a"), (2, "b"))],
        "annotations": [
            {"image_id": i, "file_name": f"{n}.png", "segments_info": info} for i, n in ((1, "a"), (2, "b"))
        ],
        "categories": [{"id": 3, "name": "dog"}, {"id": 4, "name": "sky"}],
    }
    (root / PANOPTIC).write_text(json.dumps(content))
    return CocoPanopticConfig(root=str(root))


PANOPTIC = "annotations/panoptic_val2017.json"


def own_masks(root: Path) -> AnyDataset:
    picture(root / "images" / "val" / "a.jpg")
    mask(root / "masks" / "val" / "a.png", 0, 1)
    (root / "classes.txt").write_text("dog\nsky\n")
    return MasksConfig(root=str(root))


def ade20k(root: Path, names: str = "a") -> AnyDataset:
    for name in names:
        picture(root / "images" / "validation" / f"{name}.jpg")
        mask(root / "annotations" / "validation" / f"{name}.png")
    return Ade20kConfig(root=str(root))


def coco_stuff(root: Path, names: str = "a") -> AnyDataset:
    for name in names:
        picture(root / "val2017" / f"{name}.jpg")
        mask(root / "stuffthingmaps" / "val2017" / f"{name}.png")
    return CocoStuffConfig(root=str(root))


def cityscapes(root: Path, names: str = "a") -> AnyDataset:
    for name in names:
        picture(root / "leftImg8bit" / "val" / "bonn" / f"{name}_leftImg8bit.png")
        mask(root / "gtFine" / "val" / "bonn" / f"{name}_gtFine_labelIds.png", 7, 8)
    return CityscapesConfig(root=str(root))


def ecssd(root: Path, names: str = "a") -> AnyDataset:
    for name in names:
        picture(root / "images" / f"{name}.jpg")
        mask(root / "ground_truth_mask" / f"{name}.png", 0, 255)
    return EcssdConfig(root=str(root))


def pascal_context(root: Path) -> AnyDataset:
    folder = root / "VOC2010"
    picture(folder / "JPEGImages" / "a.jpg")
    mask(folder / "SegmentationClassContext" / "a.png")
    (folder / "ImageSets" / "SegmentationContext").mkdir(parents=True)
    (folder / "ImageSets" / "SegmentationContext" / "val.txt").write_text("a\n")
    return PascalContextConfig(root=str(root))


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


def read_everything(config: AnyDataset) -> list[Any]:
    """Open and read a test split as an evaluation does; all that a score is made of, as plain lists."""
    if SEGMENTATION.given_by(config) and not isinstance(config, VocConfig):
        maps = open_labels(SEGMENTATION, config, "test" if isinstance(config, EcssdConfig) else "val")
        return [(maps.ids[index], maps.label(index).tolist()) for index in range(len(maps))]
    boxes = open_labels(DETECTION, config, "trainval")
    return [(boxes.ids[index], boxes.boxes(index).tolist()) for index in range(len(boxes))]
