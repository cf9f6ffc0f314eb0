"""The images of a gallery, with masks, boxes and class names where their data set has them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from dinoskip.data import sets as datasets
from dinoskip.data.detection import annotated_boxes
from dinoskip.data.folders import ImageFolder
from dinoskip.data.sets.labels import CLASSES, DETECTION, SEGMENTATION
from dinoskip.data.sets.voc import annotation_of
from dinoskip.errors import DataError
from dinoskip.features import Transform
from dinoskip.io.images import image_size
from dinoskip.models import Backbone
from dinoskip.pipeline.gallery.settings import GallerySettings
from dinoskip.pipeline.stage import Task
from dinoskip.pipeline.stages.inputs import dataset_of
from dinoskip.runtime.console import log
from eval.tokencut.memory import LARGEST_DRAWN
from visualize.gallery import GalleryImage


@dataclass(frozen=True)
class GalleryImages:
    """The images of a gallery: what the feature export needs, and the labelled set they come from (if any)."""

    ids: tuple[str, ...]
    paths: tuple[Path, ...]
    labelled: Any = None
    boxes: tuple[np.ndarray | None, ...] = ()
    tags: tuple[tuple[str, ...], ...] = ()

    def path(self, index: int) -> Path:
        """The file of an image."""
        return self.paths[index]

    def __len__(self) -> int:
        return len(self.ids)

    def pages(self, size: int) -> list[GalleryImages]:
        """``size`` images after the other."""
        parts = [slice(at, at + size) for at in range(0, len(self), size)]
        return [
            replace(
                self, ids=self.ids[part], paths=self.paths[part], boxes=self.boxes[part], tags=self.tags[part],
                labelled=None if self.labelled is None else self.labelled.part(range(*part.indices(len(self)))),
            )
            for part in parts
        ]  # fmt: skip


def gallery_images(task: Task) -> GalleryImages:
    """The first images of the gallery's data set, with masks, boxes and class names where the set has them."""
    config, root = dataset_of(task)
    settings: GallerySettings = task.settings
    split, first = settings.split, settings.section.first
    if not SEGMENTATION.given_by(config) and DETECTION.given_by(config):
        boxes = datasets.open_labels(DETECTION, config, split, root)
        chosen = range(min(first, len(boxes)))
        return GalleryImages(
            boxes.ids[:first],
            tuple(boxes.path(i) for i in chosen),
            boxes=tuple(boxes.boxes(i) for i in chosen),
            tags=tuple(tuple(boxes.box_labels(i)) for i in chosen),
        )
    if not SEGMENTATION.given_by(config):
        images = datasets.open_images(config, root, split="train" if config.kind == "images" else split)
        if CLASSES.given_by(config):
            images = replace(images, names=in_turns(images.names))
        images = _readable(images, first) if config.skip_broken else images
        ids = images.ids[:first]
        folders = tuple(tuple(PurePosixPath(name).parts[:-1][:1]) for name in ids)  # a sub-folder is a class
        return GalleryImages(ids, tuple(images.path(i) for i in range(len(ids))), tags=folders)
    labelled = datasets.open_labels(SEGMENTATION, config, split, root)
    count = min(first, len(labelled))
    paths = tuple(labelled.path(i) for i in range(count))
    return GalleryImages(
        labelled.ids[:count], paths, labelled, tuple(_boxes(path, upright=labelled.labels_upright) for path in paths)
    )


def in_turns(names: Sequence[str]) -> tuple[str, ...]:
    """An image of each class folder in turn: the first of a sorted list are all of one class."""
    before: Counter[str] = Counter()
    turns = []
    for name in names:
        folder = PurePosixPath(name).parts[0]
        turns.append((before[folder], name))
        before[folder] += 1
    return tuple(name for _, name in sorted(turns, key=itemgetter(0)))


def large_enough(shown: GalleryImages, multiple: int) -> GalleryImages:
    """The images that are no smaller than a patch; all, where none is, for the error to say so."""
    kept = [index for index in range(len(shown)) if min(image_size(shown.path(index))) >= multiple]
    return _only(shown, kept or range(len(shown)))


def _only(shown: GalleryImages, kept: Sequence[int]) -> GalleryImages:
    """The images ``kept``, as far as exports need them."""
    if len(kept) == len(shown):
        return shown
    return replace(shown, ids=tuple(shown.ids[i] for i in kept), paths=tuple(shown.paths[i] for i in kept))


def cuttable(shown: GalleryImages, backbone: Backbone) -> GalleryImages:
    """The images of at most :data:`LARGEST_DRAWN` tokens in their own size."""
    native = Transform(mode="native")

    def tokens(index: int) -> int:
        return math.prod(native.padded_size(*image_size(shown.path(index)), backbone.size_multiple)) // area

    area = backbone.patch_size**2
    return _only(shown, [index for index in range(len(shown)) if tokens(index) <= LARGEST_DRAWN])


def _readable(images: ImageFolder, count: int) -> ImageFolder:
    """The first images that can be decoded; the others are named."""
    names: list[str] = []
    for index in range(len(images)):
        if len(names) == count:
            break
        try:
            images.read(index)
            names.append(images.names[index])
        except DataError as error:
            log.warning("left out as broken: %s", error)
    return replace(images, names=tuple(names) or images.names[:1])


def _boxes(image: Path, *, upright: bool) -> np.ndarray | None:
    """Ground-truth boxes of a VOC image, None where it has no annotation."""
    annotation = annotation_of(image)
    if not annotation.is_file():
        return None
    boxes = annotated_boxes(image, annotation, upright=upright)
    return np.array([box[1:] for box in boxes], dtype=np.float32).reshape(-1, 4)


def image_of(shown: GalleryImages, index: int) -> GalleryImage:
    """An image as the gallery draws it, with what its data set says of it."""
    label = None if shown.labelled is None else shown.labelled.label(index)
    boxes = shown.boxes[index] if shown.boxes else None
    tags = shown.tags[index] if shown.tags else ()
    return GalleryImage(shown.ids[index], shown.paths[index], label, boxes, tags)
