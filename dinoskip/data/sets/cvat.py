"""Kind ``cvat``: CVAT's "CVAT for images", one XML of all pictures with boxes, polygons and masks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from xml.parsers import expat

from pydantic import Field

from dinoskip.data.detection import DetectionDataset
from dinoskip.data.folders import ImageFolder
from dinoskip.data.listing import list_images, require_folder
from dinoskip.data.recognise.words import split_of
from dinoskip.data.schema import violated
from dinoskip.data.sets.coco_json import images_below
from dinoskip.data.sets.kind import CheckedSplit, DatasetKind
from dinoskip.data.sets.tool_shapes import DrawnImage, Shape, ShapesOfImage, tool_set
from dinoskip.data.tool_outlines import BoxRuns, bounds_of_points
from dinoskip.errors import DataError, guard
from dinoskip.io.files import confined, open_regular

_BLOCK = 1 << 20  # bytes that are parsed at once: the XML is never in memory as a whole
_DEEPEST = 64  # nested elements; CVAT's have eight


@dataclass
class CvatImage:
    """An image of the XML: its name, its subset, and its shapes with the size that it states."""

    name: str
    subset: str
    drawn: ShapesOfImage


@dataclass
class CvatFile:
    """Contents of an XML of CVAT; ``labels`` in the order of the task, or by name where it lists none."""

    pictures: list[CvatImage] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)


class _Reader:
    """Takes the elements of an XML as they come."""

    def __init__(self, path: Path) -> None:
        self.path, self.found, self.above = path, CvatFile(), list[str]()
        self.text: list[str] | None = None
        self.shapes: list[Shape] = []

    def start(self, name: str, given: dict[str, str]) -> None:
        if not self.above and name != "annotations":
            raise ValueError(f"its root is {name}, not annotations")
        if len(self.above) >= _DEEPEST:
            raise ValueError(f"it has more than {_DEEPEST} elements in each other")
        if name == "image":
            self.shapes = []
            size = int(given["height"]), int(given["width"])
            self.found.pictures.append(
                CvatImage(given["name"], given.get("subset", ""), ShapesOfImage(self.shapes, size))
            )
        elif self.above and self.above[-1] == "image" and name in _SHAPES:
            where = f"{self.path}: {self.found.pictures[-1].name}: object {len(self.shapes) + 1}"
            self.shapes.append(_SHAPES[name](given["label"], given, where))
        self.text = [] if self.above[-2:] == ["labels", "label"] and name == "name" else None
        self.above.append(name)

    def characters(self, text: str) -> None:
        if self.text is not None:
            self.text.append(text)

    def end(self, name: str) -> None:
        if self.text is not None:
            self.found.labels.append("".join(self.text).strip())
            self.text = None
        self.above.pop()


def _no_doctype(*_: Any) -> None:
    raise ValueError("refused: it declares a document type")  # where alone an entity bomb can be declared


def _numbers(texts: Sequence[str], where: str) -> list[float]:
    try:
        values = [float(text) for text in texts]
    except ValueError:
        raise violated(where, "its points are not numbers") from None
    if not all(map(math.isfinite, values)):
        raise violated(where, "its points are not finite")
    return values


def _box(label: str, given: dict[str, str], where: str) -> Shape:
    """A box; one that is turned around its middle is a polygon."""
    x1, y1, x2, y2, degrees = _numbers(
        [*(given[key] for key in ("xtl", "ytl", "xbr", "ybr")), given.get("rotation", "0")], where
    )
    if degrees % 360 == 0:
        return Shape(label, (x1, y1, x2 - x1, y2 - y1))
    middle, turn = ((x1 + x2) / 2, (y1 + y2) / 2), math.radians(degrees)
    points: list[float] = []
    for x, y in ((x1, y1), (x2, y1), (x2, y2), (x1, y2)):
        right, down = x - middle[0], y - middle[1]
        points.append(middle[0] + right * math.cos(turn) - down * math.sin(turn))
        points.append(middle[1] + right * math.sin(turn) + down * math.cos(turn))
    return Shape(label, bounds_of_points(points), [points])


def _polygon(label: str, given: dict[str, str], where: str) -> Shape:
    pairs = [pair.split(",") for pair in given["points"].split(";")]
    if any(len(pair) != 2 for pair in pairs):
        raise violated(where, "its points are not pairs of numbers")
    points = _numbers([text for pair in pairs for text in pair], where)
    return Shape(label, bounds_of_points(points), [points])


def _mask(label: str, given: dict[str, str], where: str) -> Shape:
    try:
        x, y, width, height = (int(given[key]) for key in ("left", "top", "width", "height"))
        runs = tuple(int(text) for text in given["rle"].split(","))
    except ValueError:
        raise violated(where, "its runs and sides are not whole numbers") from None
    return Shape(label, (x, y, width, height), BoxRuns(runs, (x, y, width, height)))


_SHAPES: dict[str, Callable[[str, dict[str, str], str], Shape]] = {"box": _box, "polygon": _polygon, "mask": _mask}
"""Shapes that are read; points, lines, ellipses, cuboids and skeletons are passed over."""


def read_cvat(path: Path) -> CvatFile:
    """Read an XML block by block; :class:`DataError` naming what is no annotation of CVAT in it."""
    reader = _Reader(path)
    parser = expat.ParserCreate()
    parser.StartElementHandler, parser.EndElementHandler = reader.start, reader.end
    parser.CharacterDataHandler, parser.StartDoctypeDeclHandler = reader.characters, _no_doctype
    with guard(path, "annotation of CVAT"), open_regular(path) as stream:
        try:
            while block := stream.read(_BLOCK):
                parser.Parse(block, False)
            parser.Parse(b"", True)
        except KeyError as error:
            raise ValueError(f"an element has no {error.args[0]}") from None
    if not reader.found.labels:
        shapes = (shape for picture in reader.found.pictures for shape in picture.drawn.shapes)
        reader.found.labels = sorted({shape.label for shape in shapes})
    reader.found.labels = list(dict.fromkeys(reader.found.labels))
    return reader.found


def as_read(drawn: ShapesOfImage, names: Sequence[str], frame: Callable[[], tuple[int, int]]) -> ShapesOfImage:
    """Return the shapes of an image, which were read with the XML."""
    return drawn


class CvatConfig(DatasetKind):
    """An XML of "CVAT for images" and the images that it names, wherever below ``root`` they lie.

    Where images have subsets, a split is that of its name; otherwise all images are the same in any split.
    """

    kind: Literal["cvat"] = "cvat"
    root: str = Field(description="folder with the XML and the images")
    annotations: str = Field("annotations.xml", description="the XML, relative to root")

    @property
    def dataset_name(self) -> str:
        return Path(self.root).name

    def open_images(self, root: Path, split: str) -> ImageFolder:
        """Open the images that the XML names."""
        return images_below(root, self.open_detection(root, split, None))

    def open_detection(self, root: Path, split: str, faults: list[str] | None) -> DetectionDataset:
        require_folder(root, "a folder with CVAT's annotations.xml")
        path = root / self.annotations
        found = read_cvat(path)
        mine = [one for one in found.pictures if one.subset and split in {one.subset, split_of(one.subset)}]
        places = _places(root)
        images = [_listed(root, path, one, places) for one in mine or found.pictures]
        images.sort(key=lambda image: image.id)
        return tool_set(self.dataset_name, split, images, found.labels, as_read, (path,), faults)

    def checked_splits(self, root: Path) -> list[CheckedSplit]:
        """The subsets that are splits; else all once."""
        subsets = dict.fromkeys(split_of(one.subset) for one in read_cvat(root / self.annotations).pictures)
        splits = [split for split in subsets if split]
        return [CheckedSplit("detection", split) for split in splits] or [CheckedSplit("detection", "all")]


def _places(root: Path) -> dict[str, str | None]:
    """Names of all images below a folder by each of their ends; None for an end of two."""
    places: dict[str, str | None] = {}
    for name in list_images(root):
        parts = name.split("/")
        for at in range(len(parts)):
            end = "/".join(parts[at:])
            places[end] = name if places.get(end, name) == name else None
    return places


def _listed(root: Path, path: Path, one: CvatImage, places: dict[str, str | None]) -> DrawnImage:
    confined(root, one.name, path)
    ends = (f"images/{one.subset}/{one.name}", f"{one.subset}/{one.name}", one.name) if one.subset else (one.name,)
    name = next((places[end] for end in ends if places.get(end)), None)
    if name is None and one.name in places:
        raise DataError(
            f"{path}: image {one.name} may be one of several below {root}", "give the folder of one of them"
        )
    return DrawnImage(name or one.name, root / (name or one.name), one.drawn)
