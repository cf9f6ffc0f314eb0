"""Detection sets: an image and its boxes, in the coordinates that CorLoc is counted in."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from dinoskip.data.labelled_images import LabelledImages
from dinoskip.data.schema import inside, same_size
from dinoskip.errors import DataError, guard
from dinoskip.io.files import read_regular
from dinoskip.io.images import image_size, sizes_tell, stored_geometry

MAX_XML = 16 << 20  # bytes of an annotation
MAX_COORDINATE = 1 << 24  # float32 holds whole numbers exactly up to here


class Box(NamedTuple):
    """One object: its class name and x1, y1, x2, y2 in pixels, 0-based, end exclusive."""

    label: str
    x1: float
    y1: float
    x2: float
    y2: float


def are_coordinates(values: Iterable[float]) -> bool:
    """Whether all are finite and at most 2^24 in size, up to where float32 holds every pixel's number exactly."""
    return all(abs(value) <= MAX_COORDINATE for value in values)


Size = tuple[Any, Any]
"""(height, width) as an annotation gives them, whatever they are."""


def frame_said(image: Path, annotated: Size | None) -> Literal["upright", "stored"] | None:
    """Return which pixels of an image an annotation is for, by the size that it states; None if that does not say."""
    size, orientation = stored_geometry(image)
    if annotated is None or not sizes_tell(size, orientation):
        return None
    return "stored" if annotated == size else "upright"


def frame_of(
    image: Path, annotated: Size | None, where: object, *, swapped: bool = False, upright: bool = False
) -> tuple[tuple[int, int], int]:
    """Return the (height, width) that an image's annotation is of, and the EXIF orientation by which it is turned.

    ``annotated`` is the (height, width) that the annotation gives: of the stored pixels, or of the upright image, which
    is not turned any more: 1. Where that does not say (:func:`frame_said`), it is of the upright image if ``upright``.
    With ``swapped`` it may have its sides in either order. Raises :class:`DataError` saying ``where`` for another size.
    """
    (height, width), orientation = stored_geometry(image)
    stored = annotated in (None, (height, width))
    if upright and (annotated is None or not sizes_tell((height, width), orientation)):
        stored = False
    frame = (height, width) if stored or orientation < 5 else (width, height)
    if annotated is not None and not (swapped and annotated == frame[::-1]):
        same_size(annotated, frame, where)
    return frame, orientation if stored else 1


def upright_boxes(
    boxes: list[Box],
    image: Path,
    annotated: Size | None,
    where: object,
    *,
    swapped: bool = False,
    upright: bool = False,
) -> list[Box]:
    """Return boxes as they lie in the upright image, where EXIF turns it; arguments as of :func:`frame_of`.

    Raises :class:`DataError` saying ``where`` for another size and for a box outside the image.
    """
    (height, width), orientation = frame_of(image, annotated, where, swapped=swapped, upright=upright)
    inside([(x, y) for box in boxes for x, y in (box[1:3], box[3:])], (height, width), "boxes", where)
    if orientation == 1:
        return boxes
    if orientation >= 5:
        boxes = [Box(box.label, box.y1, box.x1, box.y2, box.x2) for box in boxes]
        height, width = width, height
    if orientation in {3, 4, 7, 8}:
        boxes = [Box(box.label, box.x1, height - box.y2, box.x2, height - box.y1) for box in boxes]
    if orientation in {2, 3, 6, 7}:
        boxes = [Box(box.label, width - box.x2, box.y1, width - box.x1, box.y2) for box in boxes]
    return boxes


class VocAnnotation(NamedTuple):
    """The objects of a VOC annotation, and the (height, width) of the image that it is for, None if it does not say."""

    objects: list[Box]
    size: tuple[int, int] | None


class _NoDoctype(ElementTree.TreeBuilder):
    """Refuses a document type declaration, the only place an entity bomb or an external entity can be declared."""

    def doctype(self, name: str, pubid: str | None, system: str | None) -> None:
        raise ValueError("refused: it declares a document type")


def read_voc_xml(path: Path) -> VocAnnotation:
    """Read all objects of a VOC annotation, difficult and truncated ones included.

    VOC counts pixels from 1 and includes the last, so xmin and ymin are lowered by 1 (docs/tokencut.md). Raises
    :class:`DataError` naming the file if it is missing, not XML, declares a document type, or an object has no class,
    no box or an empty one.
    """
    with guard(path, "VOC annotation"):
        tree = ElementTree.fromstring(read_regular(path, MAX_XML), ElementTree.XMLParser(target=_NoDoctype()))
    boxes = []
    for number, item in enumerate(tree.iterfind("object"), start=1):
        label = (item.findtext("name") or "").strip()
        try:
            x1, y1, x2, y2 = (float(item.findtext(f"bndbox/{key}") or "") for key in ("xmin", "ymin", "xmax", "ymax"))
        except ValueError:
            raise DataError(f"{path}: object {number} has no bndbox of four numbers") from None
        box = Box(label, x1 - 1, y1 - 1, x2, y2)
        if not label or not are_coordinates(box[1:]) or box.x2 <= box.x1 or box.y2 <= box.y1:
            raise DataError(
                f"{path}: object {number} has no name, an empty box or one beyond ±2^24: {[x1, y1, x2, y2]}"
            )
        boxes.append(box)
    sides = [tree.findtext(f"size/{side}") or "" for side in ("height", "width")]
    known = all(side.isascii() and side.isdecimal() and len(side) < 10 and int(side) for side in sides)
    return VocAnnotation(boxes, (int(sides[0]), int(sides[1])) if known else None)


def annotated_boxes(image: Path, annotation: Path, *, upright: bool = False) -> list[Box]:
    """Return the objects of a VOC annotation as they lie in the upright image; errors as :func:`read_voc_xml`.

    ``upright`` as of :func:`frame_of`.
    """
    objects, size = read_voc_xml(annotation)
    # VOC2012 has sizes with swapped sides
    return upright_boxes(objects, image, size, annotation, swapped=True, upright=upright)


@dataclass(frozen=True, eq=False)
class DetectionDataset(LabelledImages):
    """Images with annotated boxes, one VOC annotation each.

    ``labels_upright``: boxes of photographs that EXIF turns are drawn upright where the size that their annotation
    states does not say it; ``labels_by`` says how that is known (:mod:`dinoskip.data.orientation`).
    """

    of_each: ClassVar[tuple[str, ...]] = ("annotation_paths",)
    files = "annotation_paths"
    annotation_paths: tuple[Path, ...]
    _: KW_ONLY
    labels_upright: bool = False
    labels_by: str = ""

    def given(self, index: int) -> tuple[list[Box], Size | None]:
        """Return the objects of image ``index`` as annotated, and the size of the image that the annotation states."""
        return read_voc_xml(self.annotation_paths[index])

    def label_frame(self, index: int) -> Literal["upright", "stored"] | None:
        """Return the frame that the size in an annotation implies: upright or stored pixels, None if neither."""
        return frame_said(self.image_paths[index], self.given(index)[1])

    def boxes_in_shares(self, index: int, *, upright: bool) -> np.ndarray:
        """Return boxes as annotated, in shares of the sides of the picture they are of: float32 (K, 4).

        That picture has the size that the annotation states, or else that of the image, ``upright`` or as stored.
        """
        boxes, size = self.given(index)
        height, width = size or image_size(self.image_paths[index], upright=upright)
        corners = np.array([box[1:] for box in boxes], dtype=np.float32).reshape(-1, 4)
        return np.asarray(corners / np.array([width, height, width, height], dtype=np.float32))

    def objects(self, index: int) -> list[Box]:
        """Return the objects of image ``index``; :class:`DataError` for a bad annotation or an unknown class."""
        paths = self.image_paths[index], self.annotation_paths[index]
        objects = annotated_boxes(*paths, upright=self.labels_upright)
        for item in objects:
            if item.label not in self.class_names:
                raise DataError(f"{self.annotation_paths[index]}: {item.label!r} is none of the dataset's classes")
        return objects

    def check_outlines(self, index: int) -> None:
        """Raise :class:`DataError` unless every outline of image ``index`` can be read; these sets have boxes alone."""

    def boxes(self, index: int) -> np.ndarray:
        """Return the boxes of image ``index``, float32 (K, 4): x1 y1 x2 y2 in pixels, 0-based, end exclusive."""
        return np.array([item[1:] for item in self.objects(index)], dtype=np.float32).reshape(-1, 4)

    def box_labels(self, index: int) -> list[str]:
        """Return the class name of every box of image ``index``."""
        return [item.label for item in self.objects(index)]


def dominant_labels(dataset: DetectionDataset) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return the class of each image's largest box as int64 (N,), and the class names: labels for k-NN on VOC layouts.

    Of boxes of equal area the first counts. Raises :class:`DataError` naming an image without objects.
    """
    number = {name: index for index, name in enumerate(dataset.class_names)}
    labels = np.empty(len(dataset), dtype=np.int64)
    for index in range(len(dataset)):
        objects = dataset.objects(index)
        if not objects:
            raise DataError(f"{dataset.annotation_paths[index]}: no object, so this image has no dominant class")
        largest = max(objects, key=lambda item: (item.x2 - item.x1) * (item.y2 - item.y1))
        labels[index] = number[largest.label]
    return labels, dataset.class_names
