"""Boxes and outlines that labelling tools write: what their readers give, and the sets that are made of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dinoskip.data.detection import Box, DetectionDataset, Size, are_coordinates, frame_of, upright_boxes
from dinoskip.data.outlines import OutlineError
from dinoskip.data.schema import unique, violated
from dinoskip.data.sets.coco_json import CocoDetection, rounded_box
from dinoskip.data.tool_outlines import Bounds, tool_mask
from dinoskip.errors import DataError
from dinoskip.io.images import image_size

LOOKED_INTO = 100
"""Images of a split, evenly spread, of which the shapes say whether it has outlines: rates of SIGNATURES saturate."""


class Shape(NamedTuple):
    """An object as drawn: its class, the box around it (x, y, width, height), and its outline, if it is no box."""

    label: str
    bbox: Bounds
    outline: Any = None


class ShapesOfImage(NamedTuple):
    """The objects of an image, and the (height, width) that its annotation states, if it states one."""

    shapes: Sequence[Shape]
    size: Size | None = None


Reader = Callable[[Any, tuple[str, ...], Callable[[], tuple[int, int]]], ShapesOfImage]
"""Reads the shapes of one image: of its key (a file of labels, or what one was read as), the classes, and what gives
the (height, width) of the image in the frame that labels are of."""


@dataclass(frozen=True, eq=False)
class ToolDetection(DetectionDataset):
    """Images with shapes. ``keys`` are what ``read`` reads them of; None: the image has no object."""

    of_each = ("keys",)
    keys: tuple[Any, ...] = ()
    read: Reader | None = None

    @property
    def target_files(self) -> tuple[Path, ...]:
        """The files that hold what images are measured against."""
        files = tuple(key for key in self.keys if isinstance(key, Path))
        return files or self.annotation_paths

    def where(self, index: int) -> str:
        """Say which file, and which image in it, for messages."""
        key = self.keys[index]
        return str(key) if isinstance(key, Path) else f"{self.annotation_paths[0]}: image {self.ids[index]}"

    def drawn(self, index: int) -> ShapesOfImage:
        """Return the shapes of image ``index`` as drawn; :class:`DataError` naming what is wrong with them."""
        assert self.read is not None
        if self.keys[index] is None:
            return ShapesOfImage(())
        drawn = self.read(self.keys[index], self.class_names, lambda: self._unstated(index))
        for number, shape in enumerate(drawn.shapes, 1):
            x, y, width, height = shape.bbox
            if not (
                are_coordinates((x, y, width, height)) and min(width, height) >= 0 and np.isfinite(shape.bbox).all()
            ):
                raise violated(self.where(index), f"object {number} has an impossible box {list(shape.bbox)}")
            if shape.label not in self.class_names:
                raise violated(self.where(index), f"object {number}: {shape.label!r:.60} is none of the classes")
        return drawn

    def _unstated(self, index: int) -> tuple[int, int]:
        return image_size(self.image_paths[index], upright=self.labels_upright)

    def given(self, index: int) -> tuple[list[Box], Size | None]:
        """Return the boxes of image ``index`` as drawn, and the size of the image that the annotation states."""
        drawn = self.drawn(index)
        return [rounded_box(shape.label, *shape.bbox) for shape in drawn.shapes], drawn.size

    def boxes_in_shares(self, index: int, *, upright: bool) -> np.ndarray:
        """Return boxes as drawn, in shares of the sides of the picture they are of: float32 (K, 4)."""
        boxes, size = self.given(index)
        height, width = size or self._unstated(index)
        corners = np.array([box[1:] for box in boxes], dtype=np.float32).reshape(-1, 4)
        return np.asarray(corners / np.array([width, height, width, height], dtype=np.float32))

    def objects(self, index: int) -> list[Box]:
        """Return the objects of image ``index``, upright."""
        boxes, size = self.given(index)
        where = self.where(index)
        return upright_boxes(boxes, self.image_paths[index], size, where, upright=self.labels_upright)


@dataclass(frozen=True, eq=False)
class OutlinedDetection(ToolDetection, CocoDetection):
    """The same where objects have outlines; the outline of one that is drawn as a box is that box."""

    of_each = ("keys",)  # type: ignore[assignment]  # of tuples of another length

    @property
    def categories(self) -> dict[Any, str]:
        """Names of the classes by number, from 1."""
        return dict(enumerate(self.class_names, 1))

    def entries(self, index: int) -> list[dict[str, Any]]:
        """Return the objects of image ``index`` as COCO has them: ``category_id``, ``bbox``, ``area`` ..."""
        numbers = {name: number for number, name in self.categories.items()}
        return [
            {
                "id": number, "category_id": numbers[shape.label], "bbox": list(shape.bbox), "iscrowd": 0,
                "area": shape.bbox[2] * shape.bbox[3], "segmentation": shape.outline or _rectangle(shape.bbox),
            }
            for number, shape in enumerate(self.drawn(index).shapes, 1)
        ]  # fmt: skip

    def outline(self, entry: Any, size: tuple[int, int]) -> np.ndarray:
        """Return one of :meth:`entries` as a mask bool (H, W); :class:`DataError` with the first rule it breaks."""
        try:
            return tool_mask(entry["segmentation"], size, entry["bbox"])
        except OutlineError as error:
            raise violated(f"{self.annotation_paths[0].parent}: object {entry['id']}", f"outline: {error}") from None

    def check_outlines(self, index: int) -> None:
        """Decode every outline of image ``index``; the error names its file."""
        size, _ = self._frame(index)
        for entry in self.entries(index):
            try:
                tool_mask(entry["segmentation"], size, entry["bbox"])
            except OutlineError as error:
                raise violated(self.where(index), f"object {entry['id']}: outline: {error}") from None

    def _frame(self, index: int) -> tuple[tuple[int, int], int]:
        stated = self.drawn(index).size
        return frame_of(self.image_paths[index], stated, self.where(index), upright=self.labels_upright)


def _rectangle(bbox: Bounds) -> list[list[float]]:
    x, y, width, height = bbox
    return [[x, y, x + width, y, x + width, y + height, x, y + height]]


class DrawnImage(NamedTuple):
    """An image of a split: its id, its file, and the key of its shapes, None where it has none."""

    id: str
    file: Path
    key: Any


def tool_set(
    name: str,
    split: str,
    images: Iterable[DrawnImage],
    classes: Sequence[str],
    read: Reader,
    annotations: Sequence[Path],
    faults: list[str] | None,
) -> ToolDetection:
    """Make the set of a split of images and their shapes; ``annotations`` are the files that these are read of.

    It has outlines if one of :data:`LOOKED_INTO` images has. Raises :class:`DataError` for an image that is missing,
    which with ``faults`` is noted there and left out, and for a split without images.
    """
    kept, where = [], annotations[0]
    for image in images:
        if image.file.is_file():
            kept.append(image)
        elif faults is None:
            raise DataError(f"{image.file}: missing, but {where.name} names it")
        else:
            faults.append(f"{image.file}: missing, but {where.name} names it")
    if not kept:
        raise DataError(f"{where}: no image of it is there")
    unique((image.id for image in kept), "image", where)
    unique(classes, "class", where)
    if not classes:
        raise DataError(f"{where}: names no class")
    made: dict[str, Any] = {
        "name": name, "split": split, "ids": tuple(image.id for image in kept),
        "image_paths": tuple(image.file for image in kept), "annotation_paths": tuple(annotations),
        "class_names": tuple(classes), "keys": tuple(image.key for image in kept), "read": read,
    }  # fmt: skip
    plain = ToolDetection(**made)
    return OutlinedDetection(**made) if _has_outlines(plain) else plain


def _has_outlines(opened: ToolDetection) -> bool:
    labelled = [index for index, key in enumerate(opened.keys) if key is not None]
    step = max(1, len(labelled) // LOOKED_INTO)
    for index in labelled[::step][:LOOKED_INTO]:
        try:
            if any(shape.outline is not None for shape in opened.drawn(index).shapes):
                return True
        except DataError:
            continue  # named where it is read
    return False
