"""Small folders in nineteen layouts that people have, with the photographs that are right for each.

Photographs are noise with edges, which no content rule may take for a label map; label maps are drawn squares.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

from dinoskip.data.segmentation import voc_palette

SIZE = (40, 48)


@cache
def _photo(number: int) -> Image.Image:
    rng = np.random.default_rng(number)
    coarse = Image.fromarray(rng.integers(0, 256, (6, 7, 3), dtype=np.uint8)).resize(SIZE[::-1])
    return Image.fromarray(np.clip(np.asarray(coarse) + rng.integers(-20, 20, (*SIZE, 3)), 0, 255).astype(np.uint8))


def photo(path: Path, number: int) -> None:
    """Write a photograph; its format follows from the name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _photo(number).save(path)


def label_map(path: Path, number: int, mode: str = "P") -> None:
    """Write a label map as palette, grey (L), colours (RGB), instance numbers of 16 bits (I;16) or depth (depth)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    labels = np.zeros(SIZE, np.uint8)
    labels[5 + number % 7 : 25, 8 : 20 + number % 9] = 1 + number % 5
    labels[30:] = 7
    if mode == "P":
        image = Image.fromarray(labels, "P")
        image.putpalette(voc_palette().tobytes())
    elif mode == "RGB":
        image = Image.fromarray(voc_palette()[labels].reshape(*SIZE, 3))
    elif mode == "I;16":
        image = Image.fromarray(labels.astype(np.uint16) * 1000)
    elif mode == "depth":
        ramp = np.add.outer(np.arange(SIZE[0]) * 37, np.arange(SIZE[1]) * 11) + 900 + labels.astype(int) * 400
        image = Image.fromarray(ramp.astype(np.uint16))
    elif mode == "depth8":
        image = Image.fromarray(np.asarray(_photo(number + 500).convert("L")))
    else:
        image = Image.fromarray(labels * (1 if mode == "L" else 30), "L")
    image.save(path)


def text(path: Path, content: str = "") -> None:
    """Write a text, its folders too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


@dataclass(frozen=True)
class Made:
    """The photographs of a folder that was made, relative to it, and how many other images it has."""

    photographs: frozenset[str]
    maps: int = 0


class _Maker:
    def __init__(self, root: Path) -> None:
        self.root, self.photos, self.maps = root, list[str](), 0

    def photo(self, name: str) -> None:
        photo(self.root / name, len(self.photos))
        self.photos.append(name)

    def map(self, name: str, mode: str = "P") -> None:
        label_map(self.root / name, self.maps, mode)
        self.maps += 1

    def text(self, name: str, content: str = "") -> None:
        assert not name.startswith("/")
        text(self.root / name, content)

    @property
    def made(self) -> Made:
        return Made(frozenset(self.photos), self.maps)


Splits = tuple[str, ...]
BOTH: Splits = ("train", "val")


def cityscapes(root: Path, splits: Splits = BOTH) -> Made:
    make = _Maker(root)
    for split in splits:
        for city in ("aachen", "bonn"):
            for at in range(3):
                name = f"{split}/{city}/{city}_{at:06d}_000019"
                make.photo(f"leftImg8bit/{name}_leftImg8bit.png")
                make.map(f"gtFine/{name}_gtFine_labelIds.png", "L")
                make.map(f"gtFine/{name}_gtFine_instanceIds.png", "I;16")
                make.map(f"gtFine/{name}_gtFine_color.png", "RGB")
                make.text(f"gtFine/{name}_gtFine_polygons.json", "{}")
    return make.made


def mapillary(root: Path, splits: Splits = BOTH) -> Made:
    make = _Maker(root)
    make.text("config_v1.2.json", "{}")
    for split in splits:
        for at in range(4):
            folder = {"train": "training", "val": "validation"}[split]
            make.photo(f"{folder}/images/m{split}{at}.jpg")
            make.map(f"{folder}/v1.2/labels/m{split}{at}.png", "P")
            make.map(f"{folder}/v1.2/instances/m{split}{at}.png", "I;16")
            make.map(f"{folder}/v1.2/panoptic/m{split}{at}.png", "RGB")
    return make.made


def coco_json(names: list[str], *, boxes: bool = True) -> str:
    """A JSON in COCO's format."""
    images = [{"id": at, "file_name": name, "height": SIZE[0], "width": SIZE[1]} for at, name in enumerate(names, 1)]
    box = {"bbox": [4, 4, 12, 10], "area": 120, "iscrowd": 0, "segmentation": [[4, 4, 16, 4, 16, 14]]}
    annotations = [{"id": at, "image_id": at, "category_id": 1, **box} for at in range(1, len(names) + 1)]
    categories = [{"id": 1, "name": "square"}]
    return json.dumps({"images": images, "annotations": annotations if boxes else [], "categories": categories})


def roboflow_coco(root: Path, splits: Splits = ("train", "valid", "test")) -> Made:
    make = _Maker(root)
    make.text("README.roboflow.txt", "exported")
    for split in splits:
        names = [f"{split}{at}_jpg.rf.{at:08x}.jpg" for at in range(3)]
        for name in names:
            make.photo(f"{split}/{name}")
        make.text(f"{split}/_annotations.coco.json", coco_json(names))
    return make.made


def coco(
    root: Path, splits: Splits = BOTH, *, images: str = "{}2017", json: str = "annotations/instances_{}2017.json"
) -> Made:
    make = _Maker(root)
    for split in splits:
        names = [f"{at:012d}.jpg" for at in range(3)]
        for name in names:
            make.photo(f"{images.format(split)}/{name}")
        make.text(json.format(split), coco_json(names))
        make.text(f"annotations/captions_{split}.json", '{"images": [], "annotations": [{"caption": "x"}]}')
    return make.made


def coco_stuff(root: Path, splits: Splits = BOTH) -> Made:
    made = coco(root, splits)
    make = _Maker(root)
    for split in splits:
        for at in range(3):
            make.map(f"stuffthingmaps/{split}2017/{at:012d}.png", "L")
    return Made(made.photographs, make.maps)


def imagenet(root: Path, splits: Splits = BOTH) -> Made:
    make = _Maker(root)
    for wnid in ("n01440764", "n01443537"):
        for at in range(3):
            make.photo(f"train/{wnid}/{wnid}_{at}.JPEG")
    for at in range(3):
        make.photo(f"val/ILSVRC2012_val_{at:08d}.JPEG")
    make.text("ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt", "1\n2\n1\n")
    return make.made


def supervisely(root: Path, splits: Splits = BOTH) -> Made:
    make = _Maker(root)
    make.text("meta.json", '{"classes": []}')
    for split in splits:
        for at in range(3):
            make.photo(f"{split}/img/s{at}.jpg")
            make.text(f"{split}/ann/s{at}.jpg.json", "{}")
            make.map(f"{split}/masks_machine/s{at}.png", "RGB")
    return make.made


def yolo(root: Path, splits: Splits = BOTH, *, nested: bool = False) -> Made:
    make = _Maker(root)
    make.text("data.yaml", "names: [square]\n")
    for split in splits:
        for at in range(4):
            images, labels = (f"{split}/{part}" if nested else f"{part}/{split}" for part in ("images", "labels"))
            make.photo(f"{images}/y{at}.jpg")
            if at:
                make.text(f"{labels}/y{at}.txt", "0 0.5 0.5 0.25 0.2\n0 .1 .2 .3 .4\n")
    return make.made


def davis(root: Path, splits: Splits = BOTH, *, resolution: str = "480p") -> Made:
    make = _Maker(root)
    for sequence in ("bear", "dog"):
        for at in range(4):
            make.photo(f"JPEGImages/{resolution}/{sequence}/{at:05d}.jpg")
            make.map(f"Annotations/{resolution}/{sequence}/{at:05d}.png")
    make.text("ImageSets/2017/train.txt", "bear\n")
    make.text("ImageSets/2017/val.txt", "dog\n")
    return make.made


def cvat_masks(root: Path, splits: Splits = BOTH) -> Made:
    make = _Maker(root)
    make.text("labelmap.txt", "# label:color_rgb:parts:actions\nbackground:0,0,0::\nsquare:128,0,0::\n")
    for at in range(4):
        make.photo(f"JPEGImages/c{at}.jpg")
        make.map(f"SegmentationClass/c{at}.png", "RGB")
        make.map(f"SegmentationObject/c{at}.png", "RGB")
    make.text("ImageSets/Segmentation/default.txt", "c0\nc1\nc2\nc3\n")
    return make.made


VOC_XML = (
    "<annotation><size><width>48</width><height>40</height><depth>3</depth></size><object><name>dog</name><bndbox>"
    "<xmin>3</xmin><ymin>4</ymin><xmax>20</xmax><ymax>22</ymax></bndbox></object></annotation>"
)


def voc(root: Path, splits: Splits = BOTH, *, inner: str = "VOCdevkit/VOC2012", boxes: bool = True) -> Made:
    make, start = _Maker(root), f"{inner}/" if inner else ""
    for number, split in enumerate(splits):
        ids = [f"2007_{number}{at:05d}" for at in range(4)]
        for name in ids:
            make.photo(f"{start}JPEGImages/{name}.jpg")
            make.map(f"{start}SegmentationClass/{name}.png")
            make.map(f"{start}SegmentationObject/{name}.png")
            if boxes:
                make.text(f"{start}Annotations/{name}.xml", VOC_XML)
        for kind in ("Segmentation", *(("Main",) if boxes else ())):
            make.text(f"{start}ImageSets/{kind}/{split}.txt", "".join(f"{name}\n" for name in ids))
    return make.made


def cvat_images(root: Path, splits: Splits = BOTH) -> Made:
    make = _Maker(root)
    nodes = []
    for at in range(4):
        make.photo(f"images/default/c{at}.jpg")
        nodes.append(f'<image id="{at}" name="c{at}.jpg" width="48" height="40"></image>')
    make.text(
        "annotations.xml", f'<?xml version="1.0"?><annotations><version>1.1</version>{"".join(nodes)}</annotations>'
    )
    return make.made


def roboflow_voc(root: Path, splits: Splits = ("train", "valid", "test")) -> Made:
    make = _Maker(root)
    for split in splits:
        for at in range(4):
            make.photo(f"{split}/v{split}{at}.jpg")
            make.text(f"{split}/v{split}{at}.xml", VOC_XML)
    return make.made


def ade20k_full(root: Path, splits: Splits = BOTH) -> Made:
    make = _Maker(root)
    make.text("index_ade20k.mat", "x")
    for split in splits:
        for at in range(3):
            folder = {"train": "training", "val": "validation"}[split]
            name = f"images/{folder}/a/abbey/ADE_{split}_{at:08d}"
            make.photo(f"{name}.jpg")
            make.map(f"{name}_seg.png", "RGB")
            make.map(f"{name}_parts_1.png", "RGB")
            make.text(f"{name}_atr.txt", "001 # 0 # 0 # wall")
    return make.made


def scene_parse(root: Path, splits: Splits = BOTH) -> Made:
    make = _Maker(root)
    for split in splits:
        for at in range(3):
            folder = {"train": "training", "val": "validation"}[split]
            make.photo(f"images/{folder}/ADE_{split}_{at:08d}.jpg")
            make.map(f"annotations/{folder}/ADE_{split}_{at:08d}.png", "L")
    return make.made


def lists(root: Path, splits: Splits = BOTH) -> Made:
    make = _Maker(root)
    for split in splits:
        lines = []
        for at in range(3):
            image, depth = f"data/kitchen/{split}rgb_{at:05d}.jpg", f"data/kitchen/{split}sync_{at:05d}.png"
            make.photo(image)
            make.map(depth, "depth")
            lines.append(f"{image},{depth}\n")
        make.text(f"{split}_pairs.csv", "image,depth\n" + "".join(lines))
    return make.made


def pairs(
    root: Path,
    splits: Splits = BOTH,
    *,
    images: str = "images",
    masks: str = "masks",
    mode: str = "L",
    nested: bool = False,
) -> Made:
    make = _Maker(root)
    for split in splits:
        for at in range(4):
            first, second = (f"{split}/{part}" if nested else f"{part}/{split}" for part in (images, masks))
            make.photo(f"{first}/p{at}.jpg")
            make.map(f"{second}/p{at}.png", mode)
    make.text("classes.txt", "ground\nsquare\n")
    return make.made


def suffixed(root: Path, splits: Splits = BOTH, *, suffix: str = "_mask", ending: str = "png") -> Made:
    make = _Maker(root)
    for at in range(6):
        make.photo(f"p{at}.{ending}")
        make.map(f"p{at}{suffix}.png", "L")
    return make.made


def class_folders(root: Path, splits: Splits = BOTH, *, ending: str = "png") -> Made:
    make = _Maker(root)
    for split in splits:
        for name in ("cat", "dog", "mask"):
            for at in range(3):
                make.photo(f"{split}/{name}/{at}.{ending}")
    return make.made


def photographs(root: Path, splits: Splits = BOTH) -> Made:
    make = _Maker(root)
    for at in range(6):
        make.photo(f"{'trip/' if at > 2 else ''}IMG_{at}.{'png' if at % 2 else 'jpg'}")
    make.text("notes.txt", "x")
    return make.made


def shards(root: Path, splits: Splits = BOTH) -> Made:
    """A folder of tar shards with a photograph and a label map a key; names are of members."""
    root.mkdir(parents=True, exist_ok=True)
    taken = []
    for shard in range(2):
        with tarfile.open(root / f"part-{shard}.tar", "w") as archive:
            for at in range(4):
                for ending, write in (("jpg", photo), ("seg.png", label_map)):
                    scratch = root / f".scratch.{ending}"
                    write(scratch, shard * 10 + at)
                    content = scratch.read_bytes()
                    scratch.unlink()
                    member = tarfile.TarInfo(f"{shard}{at:05d}.{ending}")
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))
                taken.append(f"part-{shard}.tar/{shard}{at:05d}.jpg")
    return Made(frozenset(taken), 8)


Make = Callable[..., Made]
LAYOUTS: dict[str, tuple[Make, str, str | None]] = {
    "cityscapes": (cityscapes, "Cityscapes", "cityscapes"),
    "mapillary": (mapillary, "Mapillary Vistas", "masks"),
    "roboflow coco": (roboflow_coco, "COCO as Roboflow exports it", "coco"),
    "coco stuff": (coco_stuff, "COCO-Stuff", "coco_stuff"),
    "coco": (coco, "COCO", "coco"),
    "imagenet": (imagenet, "ImageNet with devkit", None),
    "supervisely": (supervisely, "Supervisely", "supervisely"),
    "yolo": (yolo, "YOLO", "yolo"),
    "davis": (davis, "DAVIS 2017", "davis"),
    "cvat masks": (cvat_masks, "CVAT masks", "masks"),
    "voc": (voc, "PASCAL VOC", "voc"),
    "cvat images": (cvat_images, "CVAT images", "cvat"),
    "roboflow voc": (roboflow_voc, "VOC's XMLs beside pictures", "voc_xml"),
    "ade20k full": (ade20k_full, "the full ADE20K of 2016", None),
    "scene parse": (scene_parse, "ADEChallengeData2016", "ade20k"),
    "lists": (lists, "lists of pairs", None),
    "pairs": (pairs, "images with label maps", "masks"),
    "class folders": (class_folders, "class folders", "folder"),
    "photographs": (photographs, "images", None),
}
"""Of each layout that is a folder of files: who makes it, its name, and the kind that reads its labels."""
