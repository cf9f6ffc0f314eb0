"""Kind ``coco_json``: boxes of any JSON in COCO's format."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from pydantic import Field

from dinoskip.data.detection import Box, DetectionDataset, are_coordinates, upright_boxes
from dinoskip.data.folders import ImageFolder
from dinoskip.data.schema import real_numbers, resolve, unique, violated
from dinoskip.data.sets.kind import DatasetKind, splits_of
from dinoskip.errors import DataError, guard
from dinoskip.files import confined
from dinoskip.images import stored_geometry, turn_upright


@dataclass(frozen=True, eq=False)
class CocoDetection(DetectionDataset):
    """Images with boxes that were read from one JSON. ``annotation_paths`` are the JSON and the list, if any."""

    of_each = ("objects_by_image", "sizes", "numbers")
    objects_by_image: tuple[tuple[Box, ...], ...] = ()
    sizes: tuple[tuple[Any, Any] | None, ...] = ()  # (height, width) as the JSON gives them
    numbers: tuple[Any, ...] = ()  # of the images in the JSON

    @cached_property
    def index(self) -> Any:
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
        for entry in self.index.imgToAnns.get(self.numbers[index], ()):
            _box(entry, names, path)
            area = entry.get("area", entry["bbox"][2] * entry["bbox"][3])
            real_numbers([area], "area", f"{path}: annotation {entry['id']}")
            entries.append({**entry, "area": area, "iscrowd": entry.get("iscrowd", 0)})
        return entries

    def runs(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        """Return an object's outline run by run; :class:`DataError` for one that cannot be read."""
        with guard(self.annotation_paths[0], f"outline of annotation {entry.get('id')}"):
            encoded: dict[str, Any] = self.index.annToRLE(entry)
        return encoded

    def outline(self, entry: Mapping[str, Any], size: tuple[int, int]) -> np.ndarray:
        """Return an object as a mask bool (H, W) of the stored image, whose size is given; errors as :meth:`masks`."""
        path = self.annotation_paths[0]
        with guard(path, f"outline of annotation {entry.get('id')}"):
            mask = np.asarray(self.index.annToMask(entry), dtype=np.bool_)
        if mask.shape != size:
            shape = "{} × {}".format(*mask.shape)
            raise DataError(
                f"{path}: annotation {entry.get('id')} is of an image of {shape} pixels, not {size[0]} × {size[1]}"
            )
        return mask

    def masks(self, index: int) -> list[np.ndarray]:
        """Return the objects of image ``index``, in the order of its boxes, as masks bool (H, W), upright.

        Raises :class:`DataError` for an object whose outline cannot be read or is of an image of another size.
        """
        size, orientation = stored_geometry(self.image_paths[index])
        entries = self.index.imgToAnns.get(self.numbers[index], ())
        return [turn_upright(self.outline(entry, size), orientation) for entry in entries if not entry.get("iscrowd")]

    def objects(self, index: int) -> list[Box]:
        """Return the objects of image ``index``, those marked as a crowd left out."""
        where = f"{self.annotation_paths[0]}: image {self.numbers[index]}"
        return upright_boxes(list(self.objects_by_image[index]), self.image_paths[index], self.sizes[index], where)


def load_coco(path: Path) -> Any:
    """Return a pycocotools index of a JSON. It prints while it reads; that is not shown.

    Raises :class:`DataError` for a damaged one, an id that comes twice and an annotation of no image in it.
    """
    from pycocotools.coco import COCO  # brings matplotlib

    if not path.is_file():
        raise DataError(f"{path}: no such file: expected boxes in COCO's format")
    with guard(path, "COCO file"), contextlib.redirect_stdout(io.StringIO()):
        index = COCO(str(path))
        complete = all(isinstance(index.dataset.get(key), list) for key in ("images", "annotations", "categories"))
    if not complete:
        raise DataError(f"{path}: not a COCO file: it needs lists of images, annotations and categories")
    with guard(path, "COCO file"):
        for part, kind in (("images", "image"), ("annotations", "annotation"), ("categories", "category")):
            unique((entry["id"] for entry in index.dataset[part]), kind, path)
        for entry in index.dataset["annotations"]:
            where = f"{path}: annotation {entry['id']}"
            resolve([entry["image_id"]], index.imgs, "image", where)
            if entry.get("iscrowd", 0) not in (0, 1):
                raise violated(where, f"iscrowd is {entry['iscrowd']!r}, neither 0 nor 1")
    return index


def _classes(index: Any, path: Path) -> dict[Any, str]:
    """Category names by id, in the order of the ids."""
    try:
        names = {number: str(index.cats[number]["name"]) for number in sorted(index.cats)}
    except (KeyError, TypeError) as error:
        raise DataError(f"{path}: a category has no id or name") from error
    if not names or len(set(names.values())) != len(names):
        raise DataError(f"{path}: expected categories of different names")
    return names


def _box(entry: Mapping[str, Any], names: Mapping[Any, str], path: Path) -> Box:
    """Corners x, y, x + w, y + h, each rounded half to even, as the published evaluations do."""
    try:
        x, y, width, height = real_numbers(entry["bbox"], "sides of bbox", f"{path}: annotation {entry.get('id')}")
        label = names[entry["category_id"]]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise DataError(
            f"{path}: annotation {entry.get('id')} has no bbox of four numbers or no known category"
        ) from error
    if not are_coordinates((x, y, width, height)) or width < 0 or height < 0:
        raise DataError(f"{path}: annotation {entry.get('id')} has an impossible bbox {[x, y, width, height]}")
    return Box(label, round(x), round(y), round(x + width), round(y + height))


def _objects(index: Any, number: Any, names: Mapping[Any, str], path: Path) -> tuple[Box, ...]:
    return tuple(_box(entry, names, path) for entry in index.imgToAnns.get(number, ()) if not entry.get("iscrowd"))


def _size(entry: Mapping[str, Any]) -> tuple[Any, Any] | None:
    """(height, width) of an image's entry, whatever they are; None where it gives neither."""
    return (entry.get("height"), entry.get("width")) if {"height", "width"} & entry.keys() else None


class ListedImage(NamedTuple):
    """An image that a set names: its number in the JSON, its id, and where its file lies."""

    number: Any
    id: str
    file: Path


def with_boxes(
    index: Any,
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
        sizes=tuple(_size(index.imgs[image.number]) for image in images),
        numbers=tuple(image.number for image in images),
    )


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
        listed = [(entry["file_name"], number) for number, entry in index.imgs.items()]
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
