"""Kind ``yolo``: boxes, polygons and turned boxes as Ultralytics' tools have them, a text an image.

A line is the number of a class and shares of the image's sides: centre and size of a box, or the points of a polygon.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from pydantic import Field

from dinoskip.data.class_lists import is_background, listed_classes
from dinoskip.data.detection import DetectionDataset
from dinoskip.data.folders import ImageFolder
from dinoskip.data.label_values import LabelValues
from dinoskip.data.listing import list_folder, list_images
from dinoskip.data.schema import violated
from dinoskip.data.sets.kind import CheckedSplit, DatasetKind
from dinoskip.data.sets.signatures import Finding
from dinoskip.data.sets.tool_shapes import DrawnImage, Shape, ShapesOfImage, tool_set
from dinoskip.data.splits import split_path
from dinoskip.data.tool_outlines import bounds_of_points
from dinoskip.errors import ConfigError, DataError
from dinoskip.io.files import read_regular
from dinoskip.settings.config import read_yaml

LISTS = ("data.yaml", "dataset.yaml", "classes.txt", "obj.names")
"""Files in which tools name the classes, in the order in which they are looked for."""
MAX_LABELS = 8 << 20  # bytes of an image's labels
_BOX, _FEWEST = 5, 7  # numbers of a line: class and box, class and three points


class ClassList(NamedTuple):
    """Names of classes by number; ``poses``: lines have the points of a pose after the box."""

    names: tuple[str, ...]
    poses: bool = False


def read_names(root: Path, given: str | None = None) -> ClassList:
    """Return the classes of a set: ``names`` of data.yaml, a list or numbers with names, or a name a line.

    Raises :class:`DataError` if no such file is there, or it names none.
    """
    path = next((root / name for name in ((given,) if given else LISTS) if (root / name).is_file()), None)
    if path is None:
        raise DataError(
            f"{root}: nothing names the classes: there is none of {', '.join((given,) if given else LISTS)}",
            "write classes.txt, a class name a line in the order of the numbers",
        )
    if path.suffix not in {".yaml", ".yml"}:
        listed = listed_classes(path)
        if listed.numbers and listed.numbers != tuple(range(listed.numbers[0], listed.numbers[0] + len(listed.names))):
            raise DataError(f"{path}: the numbers of its classes do not ascend by one", "list the names alone")
        return ClassList(listed.names)
    try:
        tree: dict[str, Any] = read_yaml(path).tree
    except ConfigError as error:
        raise DataError(error.message) from None
    names = tree.get("names")
    if isinstance(names, dict):
        numbered = {str(number): name for number, name in names.items()}
        names = [numbered.get(str(number)) for number in range(len(numbered))]
    if not isinstance(names, list) or not names or any(not isinstance(one, str | int) for one in names):
        raise DataError(f"{path}: names is no list of classes numbered from 0")
    return ClassList(tuple(map(str, names)), "kpt_shape" in tree)


def read_shapes(
    path: Path, names: Sequence[str], frame: Callable[[], tuple[int, int]], *, poses: bool = False, first: int = 0
) -> ShapesOfImage:
    """Read the lines of an image's labels; :class:`DataError` naming the first that is none of a box or polygon.

    ``frame`` gives (height, width) of the image. With ``poses`` what follows a box is not read. ``first`` is the number
    of the first class.
    """
    try:
        text = read_regular(path, MAX_LABELS).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not a readable text of labels: {error}") from None
    height, width = frame()
    shapes = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            words = line.split()
            label, values = _line(words[:_BOX] if poses else words, names, first, f"{path}:{number}")
            if len(values) == _BOX - 1:
                x, y, w, h = values * np.array([width, height, width, height])
                shapes.append(Shape(label, (float(x - w / 2), float(y - h / 2), float(w), float(h))))
            else:
                points = (values.reshape(-1, 2) * np.array([width, height])).ravel().tolist()
                shapes.append(Shape(label, bounds_of_points(points), [points]))
    return ShapesOfImage(shapes)


def _line(words: list[str], names: Sequence[str], first: int, where: str) -> tuple[str, np.ndarray]:
    try:
        numbers = [float(word) for word in words]
    except ValueError:
        raise violated(where, f"{' '.join(words)[:60]!r} are not numbers") from None
    number = numbers[0] - first
    if not (number.is_integer() and 0 <= number < len(names)):
        more = ", whose first is 0; first_class=1 reads numbers from 1" if number == len(names) and not first else ""
        raise violated(where, f"class {words[0][:20]} is none of the {len(names)} of the list{more}")
    values = np.array(numbers[1:])
    if len(numbers) != _BOX and (len(numbers) < _FEWEST or len(numbers) % 2 == 0):
        raise violated(
            where, f"{len(numbers)} numbers are neither a class and a box nor a class and points (predictions have 6)"
        )
    if not ((values >= -0.5) & (values <= 1.5)).all():  # how far beyond the image is told where its size is known
        raise violated(where, "its numbers are not shares of the image's sides")
    return names[int(number)], values


_ENOUGH = 20  # boxes: of fewer a class may be absent by chance


def numbered_from_one(values: LabelValues) -> Finding | None:
    """The first class in no box, and all others drawn: numbers that begin with 1, of images without the last class.

    Where the last class is drawn, its number is none of the list, which is refused.
    """
    names, counts = values.names, values.objects
    if len(names) < 2 or values.boxes < _ENOUGH or is_background(names[0]):
        return None
    if counts[0] or not all(counts[1:]):
        return None
    text = f"no box has the first class, {names[0]}, and all other classes are drawn: numbers may begin with 1"
    return Finding("numbered-from-1", "doubtful", text, "first_class=1 reads them")


class YoloConfig(DatasetKind):
    """Images and texts of boxes or polygons of the same names. Paths are relative to root, ``{split}`` is the split.

    An image without a text has no object. Classes are ``names`` of data.yaml, or the lines of classes.txt.
    """

    signatures = (numbered_from_one,)
    kind: Literal["yolo"] = "yolo"
    root: str = Field(description="folder with data.yaml, images and labels")
    images: str = Field("images/{split}", description="folder of images; {split} stands for the split")
    labels: str = Field("labels/{split}", description="folder of texts; {split} stands for the split")
    classes: str | None = Field(
        None, description="file that names the classes; null: data.yaml, dataset.yaml, classes.txt or obj.names"
    )

    first_class: int = Field(0, ge=0, le=1, description="number of the first class: 0, as the tools write, or 1")

    @property
    def dataset_name(self) -> str:
        return Path(self.root).name

    def open_images(self, root: Path, split: str) -> ImageFolder:
        """Open all images of a split, with objects or not."""
        return ImageFolder.open(split_path(root, self.images, split))

    def open_detection(self, root: Path, split: str, faults: list[str] | None) -> DetectionDataset:
        """Open a split; labels without an image are refused, or with ``faults`` noted."""
        images, labels = (split_path(root, template, split) for template in (self.images, self.labels))
        (names, poses), listed = read_names(root, self.classes), list_images(images)
        if not labels.is_dir():
            raise DataError(f"{labels}: no such folder: expected a text for each image")
        texts = {name for name in list_folder(labels).others if name.endswith(".txt") and name not in LISTS}
        found = [DrawnImage(name, images / name, _key(labels, texts, name)) for name in listed]
        lone = sorted(texts - {f"{name.rpartition('.')[0]}.txt" for name in listed})
        if lone and faults is None:
            raise DataError(f"{labels / lone[0]}: these labels have no image in {images} ({len(lone)} have none)")
        if faults is not None:
            faults += [f"{labels / name}: these labels have no image in {images}" for name in lone]
        if all(image.key is None for image in found):
            raise DataError(f"{labels}: no text here has an image of the same name in {images}")
        read = partial(read_shapes, poses=poses, first=self.first_class)
        return tool_set(self.dataset_name, split, found, names, read, (labels,), None)

    def checked_splits(self, root: Path) -> list[CheckedSplit]:
        """Train and val; without ``{split}`` in the paths, everything once."""
        splits = ("train", "val") if "{split}" in self.images + self.labels else ("all",)
        return [CheckedSplit("detection", split) for split in splits]


def _key(labels: Path, texts: set[str], image: str) -> Path | None:
    name = f"{image.rpartition('.')[0]}.txt"
    return labels / name if name in texts else None
