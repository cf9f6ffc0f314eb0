"""Composed scenes written as other kinds of data set have them, rightly and as mistakes would.

:mod:`benchmarks.label_meanings` judges them. A change is a function that writes one set below a folder.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from dinoskip.data.detection import DetectionDataset
from dinoskip.data.segmentation import IGNORE, SegmentationDataset
from dinoskip.data.sets.cityscapes import LABEL_IDS
from dinoskip.data.sets.pascal_context import CLASSES
from dinoskip.io.images import opencv

Box = tuple[int, float, float, float, float]  # number of the class, x1 y1 x2 y2 in pixels
Values = NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Scene:
    """A photograph uint8 (H, W, 3), its label map uint8 (H, W), 0 the background, and its boxes."""

    image: Values
    labels: Values
    boxes: tuple[Box, ...]


def scenes_of(masks: Sequence[SegmentationDataset], boxes: Sequence[DetectionDataset]) -> tuple[list[Scene], list[str]]:
    """Return all scenes of splits that have both labels, and the names of the classes, without background."""
    names, found = list(boxes[0].class_names), list[Scene]()
    for drawn, around in zip(masks, boxes, strict=True):
        place = {one: index for index, one in enumerate(around.ids)}
        for index, one in enumerate(drawn.ids):
            objects = around.objects(place[one])
            kept = tuple(
                (names.index(box.label), float(box.x1), float(box.y1), float(box.x2), float(box.y2)) for box in objects
            )
            with Image.open(drawn.path(index)) as image:
                found.append(Scene(np.array(image.convert("RGB")), drawn.label(index), kept))
    return found, names


def mirrored(scene: Scene) -> Scene:
    """The scene with its photograph mirrored, not its labels."""
    return replace(scene, image=np.ascontiguousarray(scene.image[:, ::-1]))


def _every_fifth(number: int, scene: Scene) -> Scene:
    return scene if number % 5 else mirrored(scene)


def _save(path: Path, values: Values) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values).save(path)


# --- masks ---------------------------------------------------------------------------------------------


def masks(change: Callable[[Values], Any], names: Sequence[str], root: Path, scenes: Sequence[Scene]) -> None:
    """Kind ``masks``: values changed, under a list of classes."""
    for number, scene in enumerate(scenes):
        _save(root / f"images/train/{number}.jpg", scene.image)
        _save(root / f"masks/train/{number}.png", np.asarray(change(scene.labels)).astype(np.uint8))
    (root / "classes.txt").write_text("\n".join(names))


def saliency(change: Callable[[Values], Any], root: Path, scenes: Sequence[Scene]) -> None:
    """Kind ``ecssd``: object masks of 0 and 255."""
    for number, scene in enumerate(scenes):
        _save(root / f"images/{number}.jpg", scene.image)
        _save(root / f"ground_truth_mask/{number}.png", np.asarray(change(scene.labels)).astype(np.uint8))


def cityscapes(ending: str, change: Callable[[Values], Any], root: Path, scenes: Sequence[Scene]) -> None:
    """Kind ``cityscapes``: masks whose names say that they hold ids, or train ids."""
    for number, scene in enumerate(scenes):
        name = f"train/a/a_{number:06d}_000019"
        _save(root / f"leftImg8bit/{name}_leftImg8bit.png", scene.image)
        _save(root / f"gtFine/{name}_gtFine_{ending}.png", np.asarray(change(scene.labels)).astype(np.uint8))


def _train_ids(labels: Values) -> Any:
    """Scenes as street: the background as unlabelled, objects as the last of the 19 classes."""
    return np.where(labels == 0, 255, 18 - labels % 19)


def _ids(labels: Values) -> Any:
    return np.where(labels == 0, 0, np.array(LABEL_IDS)[18 - labels % 19])


def pascal_context(change: Callable[[Values], Any], root: Path, scenes: Sequence[Scene]) -> None:
    """Kind ``pascal_context``: objects as the first of the 59 classes, what is around them as walls, rims as other."""
    wall = CLASSES.index("wall") + 1
    folder = root / "VOC2010"
    for number, scene in enumerate(scenes):
        _save(folder / f"JPEGImages/{number}.jpg", scene.image)
        labels = np.where(scene.labels == 0, wall, np.where(scene.labels == IGNORE, 0, scene.labels))
        _save(folder / f"SegmentationClassContext/{number}.png", np.asarray(change(labels)).astype(np.uint8))
    _list(folder / "ImageSets/SegmentationContext/train.txt", map(str, range(len(scenes))))


def _list(path: Path, names: Iterable[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{name}\n" for name in names))


def _segment_colours(labels: Values) -> Values:
    """The numbers of segments, 1000 times the value and one, as COCO writes them: red + 256 green + 65536 blue."""
    numbers = np.where(labels == IGNORE, 0, labels.astype(np.int64) * 1000 + 1000)
    return np.stack([numbers % 256, numbers // 256 % 256, numbers // 65536], axis=-1).astype(np.uint8)


def panoptic(change: Callable[[Values], Any], names: Sequence[str], root: Path, scenes: Sequence[Scene]) -> None:
    """Kind ``coco_panoptic``: ``change`` is of the colours (H, W, 3) of the segments' numbers."""
    about = []
    for number, scene in enumerate(scenes):
        _save(root / f"train2017/{number}.jpg", scene.image)
        _save(root / f"annotations/panoptic_train2017/{number}.png", change(_segment_colours(scene.labels)))
        held = [int(value) + 1 for value in np.unique(scene.labels) if value != IGNORE]
        parts = [{"id": value * 1000, "category_id": value} for value in held]
        about.append({"image_id": number, "file_name": f"{number}.png", "segments_info": parts})
    categories = [{"id": value, "name": name} for value, name in enumerate(names, 1)]
    content = {"annotations": about, "categories": categories}
    (root / "annotations/panoptic_train2017.json").write_text(json.dumps(content))


# --- boxes ---------------------------------------------------------------------------------------------

Line = Callable[[Box, tuple[int, int]], Sequence[float]]


def centred(box: Box, size: tuple[int, int]) -> Sequence[float]:
    """A line of YOLO: class, centre and size in shares of the sides."""
    number, x1, y1, x2, y2 = box
    height, width = size
    return number, (x1 + x2) / 2 / width, (y1 + y2) / 2 / height, (x2 - x1) / width, (y2 - y1) / height


def _from_one(box: Box, size: tuple[int, int]) -> Sequence[float]:
    return box[0] + 1, *centred(box, size)[1:]


def _corners(box: Box, size: tuple[int, int]) -> Sequence[float]:
    return box[0], box[1] / size[1], box[2] / size[0], box[3] / size[1], box[4] / size[0]


def _pixels(box: Box, size: tuple[int, int]) -> Sequence[float]:
    _, x, y, w, h = centred(box, size)
    return box[0], x * size[1], y * size[0], w * size[1], h * size[0]


def _rows_first(box: Box, size: tuple[int, int]) -> Sequence[float]:
    number, x, y, w, h = centred(box, size)
    return number, y, x, h, w


def yolo(line: Line, leave_out: int, names: Sequence[str], root: Path, scenes: Sequence[Scene]) -> None:
    """Kind ``yolo``; objects of the class ``leave_out`` are not drawn."""
    (root / "labels/train").mkdir(parents=True)
    for number, scene in enumerate(scenes):
        _save(root / f"images/train/{number}.jpg", scene.image)
        lines = [line(box, scene.image.shape[:2]) for box in scene.boxes if box[0] != leave_out]
        text = "\n".join(" ".join(f"{value:.6g}" for value in one) for one in lines)
        (root / f"labels/train/{number}.txt").write_text(text)
    (root / "classes.txt").write_text("\n".join(names))


Sides = Callable[[Box], list[float]]


def coco_json(bbox: Sides, names: Sequence[str], root: Path, scenes: Sequence[Scene]) -> None:
    """Kind ``coco_json``: ``bbox`` gives what stands in the place of x, y, width, height."""
    _coco(bbox, names, root, root / "annotations.json", scenes)


def coco20k(bbox: Sides, names: Sequence[str], root: Path, scenes: Sequence[Scene]) -> None:
    """Kind ``coco20k``: the same in COCO's folders, and the list."""
    (root / "annotations").mkdir(parents=True)
    _coco(bbox, names, root / "train2014", root / "annotations/instances_train2014.json", scenes)
    _list(root / "coco_20k_filenames.txt", (f"train2014/{number}.jpg" for number in range(len(scenes))))


def _coco(bbox: Sides, names: Sequence[str], root: Path, path: Path, scenes: Sequence[Scene]) -> None:
    images, entries = [], []
    for number, scene in enumerate(scenes):
        _save(root / f"{number}.jpg", scene.image)
        height, width = scene.image.shape[:2]
        images.append({"id": number, "file_name": f"{number}.jpg", "height": height, "width": width})
        for box in scene.boxes:
            about = {"id": len(entries), "image_id": number, "category_id": box[0], "iscrowd": 0}
            entries.append({**about, "bbox": bbox(box)})
    categories = [{"id": number, "name": name} for number, name in enumerate(names)]
    content = {"images": images, "annotations": entries, "categories": categories}
    path.write_text(json.dumps(content))


def _sized(box: Box) -> list[float]:
    return [box[1], box[2], box[3] - box[1], box[4] - box[2]]


def supervisely(corners: Sides, names: Sequence[str], root: Path, scenes: Sequence[Scene]) -> None:
    """Kind ``supervisely``: ``corners`` gives what stands in the place of x1, y1, x2, y2."""
    (root / "train/ann").mkdir(parents=True)
    for number, scene in enumerate(scenes):
        _save(root / f"train/img/{number}.jpg", scene.image)
        height, width = scene.image.shape[:2]
        objects = [
            {"classTitle": names[box[0]], "geometryType": "rectangle",
             "points": {"exterior": [corners(box)[:2], corners(box)[2:]], "interior": []}}
            for box in scene.boxes
        ]  # fmt: skip
        text = json.dumps({"size": {"height": height, "width": width}, "objects": objects})
        (root / f"train/ann/{number}.jpg.json").write_text(text)
    classes = [{"title": name, "shape": "rectangle"} for name in names]
    (root / "meta.json").write_text(json.dumps({"classes": classes}))


def cvat(corners: Sides, names: Sequence[str], root: Path, scenes: Sequence[Scene]) -> None:
    """Kind ``cvat``: one XML; ``corners`` as for ``supervisely``."""
    text = ""
    for number, scene in enumerate(scenes):
        _save(root / f"images/train/{number}.jpg", scene.image)
        height, width = scene.image.shape[:2]
        boxes = ""
        for box in scene.boxes:
            x1, y1, x2, y2 = corners(box)
            boxes += f'<box label="{names[box[0]]}" xtl="{x1}" ytl="{y1}" xbr="{x2}" ybr="{y2}"/>'
        about = f'id="{number}" name="{number}.jpg" subset="train" width="{width}" height="{height}"'
        text += f"<image {about}>{boxes}</image>"
    (root / "annotations.xml").write_text(f"<annotations>{text}</annotations>")


def _corners_of(box: Box) -> list[float]:
    return list(box[1:])


def _sides(writer: Callable[..., None], right: Sides, names: Sequence[str]) -> dict[str, Writer]:
    """Return what a kind with boxes in pixels is tried with; ``right`` are its four numbers."""
    return {
        **_photographs(partial(writer, right, names)),
        "y before x": partial(writer, lambda box: [right(box)[at] for at in (1, 0, 3, 2)], names),
        "shares, not pixels": partial(writer, lambda box: [value / 1000 for value in right(box)], names),
    }


def voc_xml(swap: bool, names: Sequence[str], root: Path, scenes: Sequence[Scene]) -> None:
    """Kind ``voc_xml``: an XML beside each picture; with ``swap`` y stands in the place of x."""
    for number, scene in enumerate(scenes):
        _save(root / f"train/{number}.jpg", scene.image)
        height, width = scene.image.shape[:2]
        objects = ""
        for name, x1, y1, x2, y2 in scene.boxes:
            box = {"xmin": x1 + 1, "ymin": y1 + 1, "xmax": x2, "ymax": y2}
            tags = dict(zip(("ymin", "xmin", "ymax", "xmax"), box.values(), strict=True)) if swap else box
            corners = "".join(f"<{tag}>{value:g}</{tag}>" for tag, value in tags.items())
            objects += f"<object><name>{names[name]}</name><bndbox>{corners}</bndbox></object>"
        size = f"<size><width>{width}</width><height>{height}</height><depth>3</depth></size>"
        text = f"<annotation><filename>{number}.jpg</filename>{size}{objects}</annotation>"
        (root / f"train/{number}.xml").write_text(text)


# --- all of them ---------------------------------------------------------------------------------------

Writer = Callable[[Path, Sequence[Scene]], None]


@dataclass(frozen=True)
class WrittenKind:
    """A kind that scenes are written as: its label, settings and split, and what is written by the change's name."""

    name: str
    label: str
    settings: Mapping[str, Any]
    split: str
    changes: Mapping[str, Writer]


def _changed(writer: Writer, change: Callable[[int, Scene], Scene]) -> Writer:
    def write(root: Path, scenes: Sequence[Scene]) -> None:
        writer(root, [change(number, scene) for number, scene in enumerate(scenes)])

    return write


def _photographs(writer: Writer) -> dict[str, Writer]:
    """Return the changes of photographs that every kind is tried with."""
    return {
        "as they are": writer,
        "photographs mirrored": _changed(writer, lambda _, scene: mirrored(scene)),
        "every fifth photograph mirrored": _changed(writer, _every_fifth),
    }


def _numbered(labels: NDArray[np.uint8], most: int) -> NDArray[np.int64]:
    """Number the objects of a mask from 1 on in place of their classes, ``most`` for all beyond."""
    number, found = 0, np.where(labels == 255, 255, 0).astype(np.int64)
    for value in sorted(set(np.unique(labels).tolist()) - {0, 255}):
        count, parts = opencv().connectedComponents((labels == value).astype(np.uint8))
        for part in range(1, count):
            number += 1
            found[np.asarray(parts) == part] = min(number, most)
    return found


def written_kinds(names: Sequence[str]) -> list[WrittenKind]:
    """Every kind that scenes with these classes are written as."""
    every, count = ("background", *names), len(names)
    own, right = partial(masks, lambda labels: labels, every), partial(yolo, centred, -1, names)
    return [
        WrittenKind("masks", "segmentation", MappingProxyType({"kind": "masks"}), "train", {
            **_photographs(own),
            "object 255": partial(masks, lambda labels: np.where(labels > 0, 255, 0), ("background", "object")),
            "list without the background": partial(masks, lambda labels: labels, names),
            "the same, last class absent": partial(masks, lambda v: np.where(v == count, 0, v), names),
            "background as 255, objects from 0": partial(masks, lambda labels: (labels.astype(int) - 1) % 256, every),
            "classes permuted": partial(masks, lambda v: np.where(v > 0, count + 1 - v.astype(int), 0), every),
            "background last in the list": partial(masks, lambda labels: labels, (*names, "background")),
            "object and background swapped": partial(
                masks, lambda v: np.where(v == 255, 255, v == 0), ("background", "object")
            ),
            "numbers of objects": partial(masks, lambda v: _numbered(v, count), every),
        }),
        WrittenKind("ecssd", "segmentation", MappingProxyType({"kind": "ecssd"}), "test", {
            **_photographs(partial(saliency, lambda labels: np.where(labels > 0, 255, 0))),
            "object and background swapped": partial(saliency, lambda labels: np.where(labels > 0, 0, 255)),
        }),
        WrittenKind("cityscapes", "segmentation", MappingProxyType({"kind": "cityscapes"}), "train", {
            **_photographs(partial(cityscapes, "labelIds", _ids)),
            "train ids named labelIds": partial(cityscapes, "labelIds", _train_ids),
            "ids named labelTrainIds": partial(cityscapes, "labelTrainIds", _ids),
        }),
        WrittenKind("pascal_context", "segmentation", MappingProxyType({"kind": "pascal_context"}), "train", {
            **_photographs(partial(pascal_context, lambda labels: labels)),
            "reduced by one, other 255": partial(pascal_context, lambda v: (v.astype(int) - 1) % 256),
            "one higher, 59 as 0": partial(pascal_context, lambda v: (v.astype(int) + 1) % 60),
            "of 459 classes": partial(pascal_context, lambda v: v.astype(int) * 4),
        }),
        WrittenKind("coco_panoptic", "segmentation", MappingProxyType({"kind": "coco_panoptic"}), "train", {
            **_photographs(partial(panoptic, lambda colours: colours, every)),
            "blue, green, red": partial(panoptic, lambda colours: colours[..., ::-1], every),
            "numbers in 8 bits": partial(panoptic, lambda colours: colours[..., 0], every),
        }),
        WrittenKind("yolo", "detection", MappingProxyType({"kind": "yolo"}), "train", {
            **_photographs(right),
            "numbered from 1": partial(yolo, _from_one, -1, names),
            "numbered from 1, last class absent": partial(yolo, _from_one, count - 1, names),
            "corners, not centres": partial(yolo, _corners, -1, names),
            "pixels, not shares": partial(yolo, _pixels, -1, names),
            "y before x": partial(yolo, _rows_first, -1, names),
        }),
        WrittenKind("coco_json", "detection", MappingProxyType({"kind": "coco_json"}), "all", {
            **_sides(coco_json, _sized, names),
            "corners, not sizes": partial(coco_json, _corners_of, names),
        }),
        WrittenKind("coco20k", "detection", MappingProxyType({"kind": "coco20k"}), "train2014", {
            **_sides(coco20k, _sized, names),
            "corners, not sizes": partial(coco20k, _corners_of, names),
        }),
        WrittenKind("supervisely", "detection", MappingProxyType({"kind": "supervisely"}), "train", {
            **_sides(supervisely, _corners_of, names),
            "sizes, not corners": partial(supervisely, _sized, names),
        }),
        WrittenKind("cvat", "detection", MappingProxyType({"kind": "cvat"}), "train", {
            **_sides(cvat, _corners_of, names),
            "sizes, not corners": partial(cvat, _sized, names),
        }),
        WrittenKind("voc_xml", "detection", MappingProxyType({"kind": "voc_xml"}), "train", {
            **_photographs(partial(voc_xml, False, names)),
            "y before x": partial(voc_xml, True, names),
        }),
    ]  # fmt: skip


def resized(path: Path, out: Path) -> None:
    """Write a photograph at half its size in WebP."""
    with Image.open(path) as image:
        ImageOps.scale(image.convert("RGB"), 0.5).save(out, quality=70)
