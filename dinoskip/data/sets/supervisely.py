"""Kind ``supervisely``: Supervisely's projects, a folder ``img`` and a folder ``ann`` with a JSON for each image."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from dinoskip.data.detection import DetectionDataset
from dinoskip.data.folders import ImageFolder
from dinoskip.data.listing import list_images, require_folder
from dinoskip.data.recognise.words import split_of
from dinoskip.data.schema import real_numbers, violated
from dinoskip.data.sets.coco_json import images_below
from dinoskip.data.sets.kind import CheckedSplit, DatasetKind
from dinoskip.data.sets.tool_shapes import DrawnImage, Shape, ShapesOfImage, tool_set
from dinoskip.data.tool_outlines import Holed, Picture, bounds_of_points, unpacked_picture
from dinoskip.errors import DataError, guard
from dinoskip.io.files import read_regular

MAX_FILE = 64 << 20  # bytes of an image's JSON
META = "meta.json"
AREAS = ("rectangle", "polygon", "bitmap")
"""Shapes that are read; lines, points, graphs and cuboids have no area and are passed over."""


def _json(path: Path, what: str) -> dict[str, Any]:
    with guard(path, what):
        content = json.loads(read_regular(path, MAX_FILE))
        if not isinstance(content, dict):
            raise ValueError(f"it holds a {type(content).__name__}, no object")
    return content


def read_classes(path: Path) -> tuple[str, ...]:
    """Return the titles of the classes of meta.json, in its order."""
    classes = _json(path, "Supervisely's meta.json").get("classes")
    titles = [one.get("title") if isinstance(one, dict) else None for one in classes if one] if classes else []
    if not isinstance(classes, list) or not titles or any(not isinstance(title, str) for title in titles):
        raise DataError(f"{path}: classes is no list of objects with a title")
    return tuple(map(str, titles))


def read_shapes(path: Path, names: Sequence[str], frame: Callable[[], tuple[int, int]]) -> ShapesOfImage:
    """Read the rectangles, polygons and bitmaps of an image; :class:`DataError` naming the first that is none."""
    content = _json(path, "annotation of Supervisely")
    size, objects = content.get("size"), content.get("objects", [])
    if not isinstance(objects, list):
        raise violated(path, "objects is no list")
    shapes = [_shape(one, f"{path}: object {number}") for number, one in enumerate(objects, 1)]
    stated = (size.get("height"), size.get("width")) if isinstance(size, dict) else None
    return ShapesOfImage([shape for shape in shapes if shape is not None], stated)


def _shape(given: Any, where: str) -> Shape | None:
    with guard(where, "object of Supervisely"):
        kind, label = given["geometryType"], given["classTitle"]
        if not isinstance(label, str):
            raise violated(where, "classTitle is no name")
        if kind == "bitmap":
            x, y = real_numbers(given["bitmap"]["origin"], "origin", where)
            picture = Picture(unpacked_picture(given["bitmap"]["data"]), (int(x), int(y)))
            return Shape(label, picture.bounds, picture)
        if kind not in AREAS:
            return None
        outer = _points(given["points"]["exterior"], where)
        holes = [_points(hole, where) for hole in given["points"].get("interior", [])]
        if kind == "rectangle":
            x, y, width, height = bounds_of_points(outer)
            return Shape(label, (x, y, width + 1, height + 1))  # its corners are pixels, the last one included
        return Shape(label, bounds_of_points(outer), Holed(outer, tuple(holes)) if holes else [outer])


def _points(given: Any, where: str) -> list[float]:
    points = [value for point in given for value in real_numbers(point, "points", where)]
    if len(points) < 4 or len(points) != 2 * len(given):
        raise violated(where, "its points are not pairs of numbers")
    return points


class SuperviselyConfig(DatasetKind):
    """A project of Supervisely: meta.json, and img and ann in it or in a folder of each of its data sets.

    A split is the data set of its name, such as ``train``, or all of them where none is called so.
    """

    kind: Literal["supervisely"] = "supervisely"
    root: str = Field(description="folder with meta.json")

    @property
    def dataset_name(self) -> str:
        return Path(self.root).name

    def places(self, root: Path, split: str) -> list[Path]:
        """Return the folders with img and ann of a split."""
        require_folder(root, "a project of Supervisely")
        found = [root, *sorted(entry for entry in root.iterdir() if entry.is_dir())]
        found = [place for place in found if (place / "img").is_dir() and (place / "ann").is_dir()]
        if not found:
            raise DataError(f"{root}: expected folders img and ann in it, or in the folder of each data set")
        return [place for place in found if place.name == split or split_of(place.name) == split] or found

    def open_images(self, root: Path, split: str) -> ImageFolder:
        """Open the images of a split that have a JSON."""
        return images_below(root, self.open_detection(root, split, None))

    def open_detection(self, root: Path, split: str, faults: list[str] | None) -> DetectionDataset:
        """Open a split; an image without a JSON is refused, or with ``faults`` noted."""
        found = []
        for place in self.places(root, split):
            for name in list_images(place / "img"):
                path = place / "ann" / f"{name}.json"
                if not path.is_file():  # older exports leave out the image's extension
                    path = place / "ann" / f"{name.rpartition('.')[0]}.json"
                image = place / "img" / name
                if path.is_file():
                    found.append(DrawnImage(image.relative_to(root).as_posix(), image, path))
                elif faults is None:
                    raise DataError(f"{image}: has no annotation in {place / 'ann'}")
                else:
                    faults.append(f"{image}: has no annotation in {place / 'ann'}")
        meta = root / META
        return tool_set(self.dataset_name, split, found, read_classes(meta), read_shapes, (meta,), faults)

    def checked_splits(self, root: Path) -> list[CheckedSplit]:
        """The splits that are data sets of their own; else all once."""
        names = [split for place in self.places(root, "") if (split := split_of(place.name))]
        return [CheckedSplit("detection", split) for split in dict.fromkeys(names)] or [
            CheckedSplit("detection", "all")
        ]
