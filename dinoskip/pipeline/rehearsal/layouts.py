"""Tiny data sets laid out as the real ones are, with what real ones have: grey, RGBA and oddly shaped images, classes
that are rare, masks without boxes and boxes without masks, crowds, borders that are ignored.

Another package's kind of data set has its own method ``compose(root)``, which writes one.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image
from scipy.io import savemat

from dinoskip.data.segmentation import voc_palette
from dinoskip.data.sets import KINDS
from dinoskip.data.sets.ade20k import ADE20K_CLASSES
from dinoskip.data.sets.coco20k import ANNOTATIONS, LIST
from dinoskip.data.sets.coco_stuff import NEVER_USED, STUFF_CLASSES
from dinoskip.data.sets.kind import Synthetic
from dinoskip.data.sets.voc import VOC_CLASSES
from dinoskip.data.sprites import photo
from dinoskip.errors import ConfigError
from dinoskip.io.images import image_size

GEONET_MEANS = (122.175, 116.169, 103.508)  # GeoNet's files hold an image less twice these
PHOTOS = ("coffee", "china", "flower", "grass")
SIZES = ((48, 64), (64, 48), (56, 56), (50, 71))  # flat, upright, square, and sides that no patch size divides
Box = tuple[int, int, int, int]


def picture(number: int) -> tuple[Image.Image, Box]:
    """A part of a photograph with a striped rectangle in it, and the rectangle: x1 y1 x2 y2, end exclusive.

    Every fifth is grey; sizes go round.
    """
    rng = np.random.default_rng(number)
    height, width = SIZES[number % len(SIZES)]
    whole = photo(PHOTOS[number % len(PHOTOS)])
    top, left = (int(rng.integers(0, have - need)) for have, need in zip(whole.shape, (height, width), strict=False))
    pixels = np.array(whole[top : top + height, left : left + width])
    y, x = int(rng.integers(2, height // 2)), int(rng.integers(2, width // 2))
    box = (x, y, x + width // 3, y + height // 3)
    pixels[y : box[3] : 2, x : box[2]] = rng.integers(0, 256, 3)
    pixels[y + 1 : box[3] : 2, x : box[2]] = rng.integers(0, 256, 3)
    image = Image.fromarray(pixels)
    return (image.convert("L") if number % 5 == 1 else image), box


def save(image: Image.Image, path: Path) -> Path:
    """Write an image, its folders too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path)
    return path


def label_map(size: tuple[int, int], box: Box, outside: int, inside: int, ignored: int | None) -> npt.NDArray[np.uint8]:
    """Labels uint8 (H, W) of a picture of (width, height), with a border of ``ignored`` around its object."""
    labels = np.full(size[::-1], outside, np.uint8)
    x1, y1, x2, y2 = box
    if ignored is not None:
        labels[y1 - 1 : y2 + 1, x1 - 1 : x2 + 1] = ignored
    labels[y1:y2, x1:x2] = inside
    return labels


# --- VOC -------------------------------------------------------------------------------------------------


def _voc_xml(size: tuple[int, int], boxes: list[tuple[str, Box]]) -> str:
    objects = "".join(
        f"<object><name>{name}</name><difficult>{index}</difficult><bndbox><xmin>{x1 + 1}</xmin><ymin>{y1 + 1}</ymin>"
        f"<xmax>{x2}</xmax><ymax>{y2}</ymax></bndbox></object>"
        for index, (name, (x1, y1, x2, y2)) in enumerate(boxes)
    )
    width, height = size
    shape = f"<size><width>{width}</width><height>{height}</height><depth>3</depth></size>"
    return f"<annotation>{shape}{objects}</annotation>"


def _voc_lists(folder: Path, kind: str, lists: Mapping[str, list[str]]) -> None:
    (folder / "ImageSets" / kind).mkdir(parents=True, exist_ok=True)
    for split, names in lists.items():
        (folder / "ImageSets" / kind / f"{split}.txt").write_text("".join(f"{name}\n" for name in names))


def make_voc(config: Any, root: Path) -> None:
    """VOC2012: masks, more of them in SegmentationClassAug, boxes of more images; VOC2007: boxes alone."""
    for year, count in ((2012, 20), (2007, 6)):
        folder = root / f"VOC{year}"
        ids = [f"{year}_{number:06d}" for number in range(count)]
        for number, name in enumerate(ids):
            image, box = picture(number)
            save(image, folder / "JPEGImages" / f"{name}.jpg")
            label = number % 4 * 5 + number % 2  # classes 0, 6, 10, 16: not all, not in order
            whole = [(VOC_CLASSES[label], box)] + ([("person", (0, 0, 9, 9))] if number % 3 == 0 else [])
            (folder / "Annotations").mkdir(exist_ok=True)
            (folder / "Annotations" / f"{name}.xml").write_text(_voc_xml(image.size, whole))
            if year == 2012 and number < 16:
                mask = Image.fromarray(label_map(image.size, box, 0, label + 1, 255), "P")
                mask.putpalette(voc_palette().tobytes())
                save(mask, folder / "SegmentationClassAug" / f"{name}.png")
                if number < 12:
                    save(mask, folder / "SegmentationClass" / f"{name}.png")
        train, val = ids[: count // 2], ids[count // 2 :]
        _voc_lists(folder, "Main", {"train": train, "val": val, "trainval": ids})
        if year == 2012:
            masks = {"train": ids[:8], "val": ids[8:12], "trainval": ids[:12], "trainaug": ids[:8] + ids[12:16]}
            _voc_lists(folder, "Segmentation", masks)


# --- masks of all pixels ---------------------------------------------------------------------------------


def make_ade20k(config: Any, root: Path) -> None:
    """ADEChallengeData2016: 0 is other, 1 to 150 the classes."""
    for split, numbers in (("training", range(9)), ("validation", range(9, 13))):
        for number in numbers:
            image, box = picture(number)
            name = f"ADE_{'train' if split == 'training' else 'val'}_{number:08d}"
            save(image, root / "images" / split / f"{name}.jpg")
            labels = label_map(image.size, box, 1 + number % 3, len(ADE20K_CLASSES) - number % 5, 0)
            save(Image.fromarray(labels), root / "annotations" / split / f"{name}.png")


def make_coco_stuff(config: Any, root: Path) -> None:
    """COCO 2017 with stuffthingmaps: things from 0, stuff to 181, 255 unlabelled."""
    used = [value for value, name in enumerate(STUFF_CLASSES) if name not in NEVER_USED]
    for split, numbers in (("train2017", range(9)), ("val2017", range(9, 15))):
        for number in numbers:
            image, box = picture(number)
            save(image, root / split / f"{number:012d}.jpg")
            labels = label_map(image.size, box, used[-1 - number % 3], used[number % 4], 255)
            save(Image.fromarray(labels), root / "stuffthingmaps" / split / f"{number:012d}.png")


def make_masks(config: Any, root: Path) -> None:
    """Images of several modes with masks of four classes, one of which is in no image."""
    for split, numbers in (("train", range(9)), ("val", range(9, 13))):
        for number in numbers:
            image, box = picture(number)
            rgba = number % 4 == 2
            folder = config.images.replace("{split}", split)
            save(image.convert("RGBA") if rgba else image, root / folder / f"im {number}.{'png' if rgba else 'jpg'}")
            labels = label_map(image.size, box, 0, 1 + 2 * (number % 2), 255) + config.first_value
            labels[labels < config.first_value] = 255
            save(Image.fromarray(labels), root / config.masks.replace("{split}", split) / f"im {number}.png")
    (root / config.classes).write_text("ground\nstripes\nnever\nspots\n")


def _as_composed(kind: str, **small: int | float) -> Callable[[Any, Path], None]:
    """A maker of a data set with the layout of a kind that is composed: its own maker, at a small size."""

    def make(config: Any, root: Path) -> None:
        composed: Any = KINDS[kind](**small)
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
            shutil.copytree(composed.generate(Path(scratch)), root, dirs_exist_ok=True)

    return make


def make_ecssd(config: Any, root: Path) -> None:
    """Photographs with a mask of the one object, 255."""
    for number in range(6):
        image, box = picture(number)
        save(image, root / "images" / f"{number:04d}.jpg")
        save(
            Image.fromarray(label_map(image.size, box, 0, 255, None)), root / "ground_truth_mask" / f"{number:04d}.png"
        )


def make_pf_pascal(config: Any, root: Path) -> None:
    """Pairs of photographs of two classes with the corners of their objects."""
    lines = ["source_image,target_image,class,XA,YA,XB,YB"]
    boxes = []
    for number in range(4):
        image, box = picture(number)
        save(image, root / "JPEGImages" / f"{number}.jpg")
        boxes.append([";".join(str(box[at]) for at in corner) for corner in ((0, 2, 2), (1, 1, 3))])
    for source, target in ((0, 1), (1, 2), (2, 3)):
        files = [f"PF-dataset-PASCAL/JPEGImages/{number}.jpg" for number in (source, target)]
        lines.append(",".join([*files, str(7 + source % 2), *boxes[source], *boxes[target]]))
    (root / "test_pairs_pf_pascal.csv").write_text("\n".join(lines) + "\n")


def make_nyu_normals(config: Any, root: Path) -> None:
    """GeoNet's MATLAB files to train on, labelled images as arrays to test on."""
    for folder in ("geonet", "test"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for number in range(6):
        pixels = np.asarray(picture(4 * number)[0].convert("RGB"))  # all of one size
        normals = rng.normal(size=pixels.shape) + np.array([0, 0, 3])
        depth = rng.uniform(1, 9, pixels.shape[:2])
        geonet = {"img": pixels - 2 * np.array(GEONET_MEANS), "depth": depth, "norm": normals}
        savemat(root / "geonet" / f"{number}.mat", geonet)
        np.savez_compressed(root / "test" / f"{number:04d}.npz", image=pixels, depth=depth, normals=normals)


# --- boxes -----------------------------------------------------------------------------------------------


def _coco(names: list[str], boxes: Mapping[str, Box], sizes: Mapping[str, tuple[int, int]]) -> dict[str, Any]:
    """COCO's JSON: every box is one object, the first image's also a crowd."""
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for number, name in enumerate(names, 1):
        width, height = sizes[name]
        images.append({"id": number, "file_name": name, "width": width, "height": height})
        if name in boxes:
            x1, y1, x2, y2 = boxes[name]
            for crowd in (0, 1)[: 2 if number == 1 else 1]:
                annotations.append(
                    {"id": len(annotations) + 1, "image_id": number, "category_id": 1 + 2 * (number % 2),
                     "bbox": [x1, y1, x2 - x1, y2 - y1], "area": 4, "iscrowd": crowd,
                     "segmentation": [[x1, y1, x2, y1, x2, y2, x1, y2]]}
                )  # fmt: skip
    categories = [{"id": 1, "name": "person"}, {"id": 3, "name": "car"}]
    return {"images": images, "annotations": annotations, "categories": categories}


def _boxed(root: Path, names: list[str], first: int = 0) -> dict[str, Any]:
    boxes, sizes = {}, {}
    for number, name in enumerate(names, first):
        image, box = picture(number)
        if (root / name).exists():
            size = image_size(root / name)[::-1]  # rows first
        else:
            save(image, root / name)
            size = image.size
        x1, y1, x2, y2 = box
        width, height = sizes[name] = size
        boxes[name] = (min(x1, width - 8), min(y1, height - 8), min(x2, width), min(y2, height))
    return _coco(names, {name: boxes[name] for name in names if name != names[-1]}, sizes)


def make_coco20k(config: Any, root: Path) -> None:
    """train2014, its boxes, and a list of images; one image has no box and is not listed."""
    names = [f"COCO_train2014_{number:012d}.jpg" for number in range(6)]
    content = _boxed(root / "train2014", names)
    (root / "annotations").mkdir(exist_ok=True)
    (root / ANNOTATIONS).write_text(json.dumps(content))
    (root / LIST).write_text("".join(f"train2014/{name}\n" for name in names[:-1]))


def make_coco(config: Any, root: Path) -> None:
    """COCO 2017: images and boxes with outlines of both splits."""
    for split, count, first in (("train", 5, 0), ("val", 4, 50)):  # other pictures in either
        there = sorted(path.name for path in (root / f"{split}2017").glob("*.jpg"))  # of COCO-Stuff, with masks
        content = _boxed(
            root / f"{split}2017", there[:count] or [f"{number:012d}.jpg" for number in range(count)], first
        )
        path = root / "annotations" / f"instances_{split}2017.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content))


def make_coco_json(config: Any, root: Path) -> None:
    """Boxes of the images that are there, or of new ones; the last has none."""
    there = sorted(path.relative_to(root).as_posix() for path in root.rglob("*.*g")) if root.is_dir() else []
    content = _boxed(root, there or [f"{number}.jpg" for number in range(4)])
    path = root / config.annotations
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


# --- images ----------------------------------------------------------------------------------------------


def make_folder(config: Any, root: Path, classes: int = 10) -> None:
    """Class folders; as in ImageNet some JPEGs are grey, some CMYK, and one is a PNG by content, with transparency."""
    each = 2 if classes < 100 else 1
    for split, count in (("train", classes), ("val", min(classes, 10))):
        for number in range(count * each):
            folder = root / split / f"n{number % count:08d}"
            image, _ = picture(number + (5000 if split == "val" else 0))
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"{folder.name}_{number}.JPEG"
            if number % 7 == 3:
                image.convert("RGBA").save(path, "PNG")
            elif number % 7 == 5:
                image.convert("CMYK").save(path)
            else:
                image.save(path)


def make_images(config: Any, root: Path) -> None:
    """Images of several modes, some in a folder below."""
    for number in range(12):
        image, _ = picture(number)
        rgba = number % 5 == 2
        name = f"{number}.{'png' if rgba else 'jpg'}"
        save(image.convert("RGBA") if rgba else image, root / ("more" if number > 8 else "") / name)


MAKERS: dict[str, Callable[[Any, Path], None]] = {
    "voc": make_voc,
    "ade20k": make_ade20k,
    "coco_stuff": make_coco_stuff,
    "coco": make_coco,
    "coco20k": make_coco20k,
    "masks": make_masks,
    "folder": make_folder,
    "ecssd": make_ecssd,
    "davis": _as_composed("scenes_video", videos=2, frames=3, size=48),
    "pf_pascal": make_pf_pascal,
    "nyu_normals": make_nyu_normals,
    "spair71k": _as_composed("scenes_pairs", classes=2, objects=1, views=2, size=64),
    "nyu": _as_composed("rooms", images=6, size=64, val_fraction=0.34),
    "coco_json": make_coco_json,
    "images": make_images,
}
"""Function that makes each kind; kinds that others may lie in come first."""


def maker(config: Any) -> Callable[[Any, Path], None] | None:
    """Return the function that composes data of a configuration's kind, or None."""
    own = getattr(config, "compose", None)
    return MAKERS.get(config.kind) or (None if own is None else lambda _, root: own(root))


def make_real(data: Mapping[str, Any], below: Path, classes: Mapping[str, int] | None = None) -> None:
    """Make every data set that has a root there, below a folder; ``classes``: how many of those of kind ``folder``.

    Raises :class:`ConfigError` for a kind that nobody makes, and for a root that leads out of ``below``. What lies
    there already is left.
    """
    real = {name: config for name, config in data.items() if not isinstance(config, Synthetic)}
    for name, config in real.items():
        if maker(config) is None:
            raise ConfigError(
                f"data.{name}: no synthetic data of kind {config.kind} can be made",
                f"rehearse with the same images under another kind ({', '.join(MAKERS)})",
            )
    order = list(MAKERS)
    for name, config in sorted(real.items(), key=lambda one: order.index(one[1].kind) if one[1].kind in order else 99):
        root = below / config.root
        named = [getattr(config, key, None) for key in ("images", "masks", "classes", "annotations")]
        for place in (root, *(root / path for path in named if isinstance(path, str))):
            if not Path(os.path.normpath(place)).is_relative_to(os.path.normpath(below)):
                raise ConfigError(f"data.{name}: {place}: leads out of {below}")
        mark = below / f".made-{config.kind}-{config.root.replace('/', '-')}"
        if mark.exists() or (config.kind == "images" and root.is_dir()):
            continue
        below.mkdir(parents=True, exist_ok=True)
        if config.kind == "folder":
            make_folder(config, root, (classes or {}).get(name, 10))
        else:
            made = maker(config)
            assert made is not None
            made(config, root)
        mark.touch()
