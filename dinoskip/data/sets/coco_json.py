"""Kind ``coco_json``: boxes of any JSON in COCO's format."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from pydantic import Field

from dinoskip.data.detection import Box, DetectionDataset, Size, are_coordinates, frame_of, upright_boxes
from dinoskip.data.folders import ImageFolder
from dinoskip.data.outlines import OutlineError, bounds_of_outline, mask_of_outline
from dinoskip.data.schema import real_numbers, resolve, unique, violated
from dinoskip.data.sets.kind import DatasetKind, splits_of
from dinoskip.errors import DataError, guard
from dinoskip.io.files import confined, read_regular
from dinoskip.io.images import turn_upright

MAX_JSON = 2 << 30  # bytes; the published one of train2017 has 450 MB


@dataclass(frozen=True, eq=False)
class CocoIndex:
    """The entries of a JSON: images and categories by their id, annotations by their image's."""

    images: Mapping[Any, dict[str, Any]]
    categories: Mapping[Any, dict[str, Any]]
    annotations: Mapping[Any, Sequence[dict[str, Any]]]


@dataclass(frozen=True, eq=False)
class CocoDetection(DetectionDataset):
    """Images with boxes that were read from one JSON. ``annotation_paths`` are the JSON and the list, if any."""

    of_each = ("objects_by_image", "sizes", "numbers")
    objects_by_image: tuple[tuple[Box, ...], ...] = ()
    sizes: tuple[Size | None, ...] = ()  # (height, width) as the JSON gives them
    numbers: tuple[Any, ...] = ()  # of the images in the JSON

    @cached_property
    def index(self) -> CocoIndex:
        """The JSON, read once more where masks are wanted: boxes do without its outlines."""
        return load_coco(self.annotation_paths[0])

    @cached_property
    def categories(self) -> dict[Any, str]:
        """Names of the classes by their number in the JSON, in the order of the numbers."""
        return _classes(self.index, self.annotation_paths[0])

    def entries(self, index: int) -> list[dict[str, Any]]:
        """Return what the JSON says of image ``index``, crowds too: ``id``, ``category_id``, ``bbox``, ``area`` ...

        ``area`` is the box's where the JSON has none. Raises :class:`DataError` as :meth:`objects`.
        """
        path, names = self.annotation_paths[0], self.categories
        entries = []
        for entry in self.index.annotations.get(self.numbers[index], ()):
            _box(entry, names, path)
            bbox = _bbox(entry, path)
            area = entry.get("area", bbox[2] * bbox[3])
            where = f"{path}: annotation {entry['id']}"
            if real_numbers([area], "values of area", where)[0] < 0:  # pycocotools would leave the object out
                raise violated(where, f"its area is {area}, less than 0")
            entries.append({**entry, "bbox": bbox, "area": area, "iscrowd": entry.get("iscrowd", 0)})
        return entries

    def outline(self, entry: Mapping[str, Any], size: tuple[int, int]) -> np.ndarray:
        """Return one of :meth:`entries` as a mask bool (H, W) of its image, whose size as annotated is given.

        Raises :class:`DataError` with the first rule that its outline breaks (:mod:`dinoskip.data.outlines`).
        """
        where = f"{self.annotation_paths[0]}: annotation {entry['id']}"
        if "segmentation" not in entry:
            raise violated(where, "has no outline (segmentation)")
        try:
            return mask_of_outline(entry["segmentation"], size, entry["bbox"])
        except OutlineError as error:
            raise violated(where, f"outline: {error}") from None

    def _frame(self, index: int) -> tuple[tuple[int, int], int]:
        path, number = self.annotation_paths[0], self.numbers[index]
        where = f"{path}: image {number}"
        return frame_of(self.image_paths[index], self.sizes[index], where, upright=self.labels_upright)

    def given(self, index: int) -> tuple[list[Box], Size | None]:
        """Return the objects of image ``index`` as annotated, and the size of the image that the JSON states."""
        return list(self.objects_by_image[index]), self.sizes[index]

    def masks(self, index: int) -> list[np.ndarray]:
        """Return the objects of image ``index``, in the order of its boxes, as masks bool (H, W), upright.

        Raises :class:`DataError` for an object without an outline and as :meth:`outline`.
        """
        size, orientation = self._frame(index)
        entries = (entry for entry in self.entries(index) if not entry["iscrowd"])
        return [turn_upright(self.outline(entry, size), orientation) for entry in entries]

    def check_outlines(self, index: int) -> None:
        """Decode every outline of image ``index``, crowds' too; :class:`DataError` as :meth:`outline`.

        Entries without the key ``segmentation`` are boxes alone.
        """
        size, _ = self._frame(index)
        for entry in self.entries(index):
            if "segmentation" in entry:
                self.outline(entry, size)

    def objects(self, index: int) -> list[Box]:
        """Return the objects of image ``index``, those marked as a crowd left out."""
        where = f"{self.annotation_paths[0]}: image {self.numbers[index]}"
        boxes, size = self.given(index)
        return upright_boxes(boxes, self.image_paths[index], size, where, upright=self.labels_upright)


def load_coco(path: Path) -> CocoIndex:
    """Return what a JSON holds, by numbers.

    Raises :class:`DataError` for a damaged one, an id that comes twice and an annotation of no image in it.
    """
    if not path.is_file():
        raise DataError(f"{path}: no such file: expected boxes in COCO's format")
    with guard(path, "COCO file"):
        content = json.loads(read_regular(path, MAX_JSON))
        if not isinstance(content, dict):
            raise ValueError(f"it holds a {type(content).__name__}, no object")
        parts: list[Any] = [content.get(key) for key in ("images", "annotations", "categories")]
    if not all(isinstance(part, list) for part in parts):
        raise DataError(f"{path}: not a COCO file: it needs lists of images, annotations and categories")
    images, annotations, categories = parts
    with guard(path, "COCO file"):
        for part, kind in ((images, "image"), (annotations, "annotation"), (categories, "category")):
            unique((entry["id"] for entry in part), kind, path)
        by_id = {entry["id"]: entry for entry in images}
        by_image: dict[Any, list[dict[str, Any]]] = {}
        for entry in annotations:
            where = f"{path}: annotation {entry['id']}"
            resolve([entry["image_id"]], by_id, "image", where)
            if entry.get("iscrowd", 0) not in (0, 1):
                raise violated(where, f"iscrowd is {entry['iscrowd']!r}, neither 0 nor 1")
            by_image.setdefault(entry["image_id"], []).append(entry)
        return CocoIndex(by_id, {entry["id"]: entry for entry in categories}, by_image)


def _classes(index: CocoIndex, path: Path) -> dict[Any, str]:
    """Category names by id, in the order of the ids."""
    try:
        names = {number: str(index.categories[number]["name"]) for number in sorted(index.categories)}
    except (KeyError, TypeError) as error:
        raise DataError(f"{path}: a category has no id or name") from error
    if not names or len(set(names.values())) != len(names):
        raise DataError(f"{path}: expected categories of different names")
    return names


def rounded_box(label: str, x: float, y: float, width: float, height: float) -> Box:
    """Corners x, y, x + w, y + h, each rounded half to even, as the published evaluations do."""
    return Box(label, round(x), round(y), round(x + width), round(y + height))


def _bbox(entry: Mapping[str, Any], path: Path) -> Any:
    """The entry's box, or that around its outline where it has none, as tools leave it out that draw polygons."""
    given = entry.get("bbox")
    if (given is None or given == []) and entry.get("segmentation"):
        try:
            return bounds_of_outline(entry["segmentation"])
        except OutlineError as error:
            raise violated(f"{path}: annotation {entry.get('id')}", f"has no bbox, and its outline: {error}") from None
    return given


def _box(entry: Mapping[str, Any], names: Mapping[Any, str], path: Path) -> Box:
    """The box of an entry; :class:`DataError` for an impossible one or an unknown category."""
    try:
        bbox = _bbox(entry, path)
        x, y, width, height = real_numbers(bbox, "sides of bbox", f"{path}: annotation {entry.get('id')}")
        label = names[entry["category_id"]]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise DataError(
            f"{path}: annotation {entry.get('id')} has no bbox of four numbers or a category that is not listed: "
            f"{entry.get('category_id')!r}"
        ) from error
    if not are_coordinates((x, y, width, height)) or width < 0 or height < 0:
        raise DataError(f"{path}: annotation {entry.get('id')} has an impossible bbox {[x, y, width, height]}")
    return rounded_box(label, x, y, width, height)


def _objects(index: CocoIndex, number: Any, names: Mapping[Any, str], path: Path) -> tuple[Box, ...]:
    return tuple(_box(entry, names, path) for entry in index.annotations.get(number, ()) if not entry.get("iscrowd"))


def _size(entry: Mapping[str, Any]) -> Size | None:
    """(height, width) of an image's entry, whatever they are; None where it gives neither."""
    return (entry.get("height"), entry.get("width")) if {"height", "width"} & entry.keys() else None


class ListedImage(NamedTuple):
    """An image that a set names: its number in the JSON, its id, and where its file lies."""

    number: Any
    id: str
    file: Path


def with_boxes(
    index: CocoIndex,
    path: Path,
    images: Sequence[ListedImage],
    identity: Mapping[str, Any],
    lists: tuple[Path, ...],
    faults: list[str] | None,
) -> CocoDetection:
    """Join images with their boxes."""
    source = (lists or (path,))[0].name
    missing = [image.file for image in images if not image.file.is_file()]
    if missing and faults is None:
        more = f" (and {len(missing) - 1} more of {len(images)})" if len(missing) > 1 else ""
        raise DataError(f"{missing[0]}: missing, but {source} names it{more}")
    if faults is not None:
        faults += [f"{file}: missing, but {source} names it" for file in missing]
        gone = set(missing)
        images = [image for image in images if image.file not in gone]
    names = _classes(index, path)
    return CocoDetection(
        **identity,
        class_names=tuple(names.values()),
        image_paths=tuple(image.file for image in images),
        annotation_paths=(path, *lists),
        ids=tuple(image.id for image in images),
        objects_by_image=tuple(_objects(index, image.number, names, path) for image in images),
        sizes=tuple(_size(index.images[image.number]) for image in images),
        numbers=tuple(image.number for image in images),
    )


def _file_name(entry: Mapping[str, Any]) -> Any:
    """The name of an image's file; of LVIS, which has none, COCO's folder and name as its ``coco_url`` ends.

    Backslashes, by which scripts on Windows join, divide folders.
    """
    if "file_name" in entry or not isinstance(entry.get("coco_url"), str):
        name = entry["file_name"]
        return name.replace("\\", "/") if isinstance(name, str) else name
    return "/".join(entry["coco_url"].split("/")[-2:])


def coco_json(
    annotations: str | Path,
    images: str | Path,
    *,
    name: str | None = None,
    split: str | None = None,
    faults: list[str] | None = None,
) -> CocoDetection:
    """Open the boxes of a JSON in COCO's format; ``images`` is the folder that its file names are relative to.

    ``name`` and ``split`` are said by rows, the JSON's name where they are not given.

    All images of the file, in the order of their names, those without boxes too; crowds are left out. Raises
    :class:`DataError` for a damaged JSON, a name that points outside, one that comes twice, and for missing images,
    which with ``faults`` are noted there and left out.
    """
    path, folder = Path(annotations), Path(images)
    index = load_coco(path)
    try:
        listed = [(_file_name(entry), number) for number, entry in index.images.items()]
    except (KeyError, TypeError) as error:
        raise DataError(f"{path}: an image has no id or file_name") from error
    files = [ListedImage(number, entry, confined(folder, entry, path)) for entry, number in listed]
    unique((image.id for image in files), "file_name", path)
    files.sort(key=lambda image: image.id)
    return with_boxes(index, path, files, {"name": name or path.stem, "split": split or path.stem}, (), faults)


def images_below(root: Path, dataset: DetectionDataset) -> ImageFolder:
    """Return the images of a set whose files lie below ``root``."""
    return ImageFolder(root, tuple(path.relative_to(root).as_posix() for path in dataset.image_paths))


class CocoJsonConfig(DatasetKind):
    """Boxes of any JSON in COCO's format. File names in it are relative to ``root``, as is ``annotations``."""

    splits = splits_of("detection", all=None)  # checked once
    kind: Literal["coco_json"] = "coco_json"
    root: str = Field(description="folder that file names in the JSON are relative to")
    annotations: str = Field("annotations.json", description="the JSON, relative to root")

    @property
    def dataset_name(self) -> str:
        return Path(self.annotations).stem

    def open_images(self, root: Path, split: str) -> ImageFolder:
        """Open the images that the JSON names, whatever the split."""
        return images_below(root, self.open_detection(root, split, None))

    def open_detection(self, root: Path, split: str, faults: list[str] | None) -> DetectionDataset:
        """Open the JSON, whatever the split."""
        return coco_json(root / self.annotations, root, name=self.dataset_name, faults=faults)
