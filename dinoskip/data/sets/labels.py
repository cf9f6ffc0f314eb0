"""The kinds of label that data sets can give, a record each: how a split is opened, counted, cut down and checked.

A kind of data set gives a label if its class has the record's ``method``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from dinoskip.data.detection import DetectionDataset
from dinoskip.data.geometry import DepthDataset, NormalsDataset
from dinoskip.data.keypoints import KeypointDataset
from dinoskip.data.labelled_folder import LabelledFolder
from dinoskip.data.segmentation import SegmentationDataset
from dinoskip.data.sequences import SequenceDataset
from dinoskip.io.images import read_image
from dinoskip.plugins import Table

D = TypeVar("D")


class LabelledSplit(Protocol):
    """What a split is opened as, whatever its label: all that the pipeline itself reads of it.

    :class:`dinoskip.data.labelled_images.LabelledImages` has all of it. ``target_files`` are the files that hold what
    images are measured against (their contents are in keys), ``left_out`` counts images that were left out as broken.
    """

    @property
    def ids(self) -> Sequence[str]: ...
    @property
    def class_names(self) -> Sequence[str]: ...
    @property
    def target_files(self) -> Sequence[Path]: ...
    @property
    def left_out(self) -> int: ...
    def __len__(self) -> int: ...
    def path(self, index: int, /) -> Path: ...
    def part(self, positions: Sequence[int], /) -> LabelledSplit: ...


OF_A_SPLIT = ("ids", "class_names", "target_files", "left_out", "__len__", "path", "part")
"""What :class:`LabelledSplit` has; an opened split that lacks one is refused before anything is computed."""

Count = tuple[dict[str, int], Callable[[int], None]]
"""How often each class occurs, and what reads one item whole (:class:`DataError` if it is damaged) and counts it."""


def _size(opened: Any) -> int:
    return len(opened)


def _ids(opened: Any) -> Sequence[str]:
    return list(opened.ids)


def _no_values(opened: Any) -> None:
    return None


def decoded(opened: Any) -> Count:
    """Decode images, and count nothing."""

    def read(index: int) -> None:
        read_image(opened.path(index))

    return {}, read


@dataclass(frozen=True, eq=False)
class Label(Generic[D]):
    """A kind of label; ``D`` is what a split with it is opened as.

    Args:
        name: in records of tasks and in ``data check``.
        what: what messages call the labels; ``short``: in a word.
        method: of a kind's class: ``method(root, split, faults)`` opens a split. With a list for ``faults``, files that
            are missing or have no partner are noted there and the images concerned are left out; without, the first one
            is a :class:`DataError`.
        count: what is counted of an opened split, and how one item is read; by default images are decoded.
        items: ids of what a limit draws from.
        size: how many images, or what else ``unit`` says, ``data check`` counts.
        seen_by: splits in which ``look`` looks for them: all of one of these.
        values: what images are measured against, where it lies in no file: part of keys. None: in ``target_files``.
        tokens: whether tasks with this label read patch tokens, unless they request otherwise; ``cls``: CLS tokens.
    """

    name: str
    what: str
    short: str
    method: str
    count: Callable[[D], Count] = decoded
    items: Callable[[D], Sequence[str]] = _ids
    size: Callable[[D], int] = _size
    unit: str = "images"
    seen_by: tuple[tuple[str, ...], ...] = (("train", "val"),)
    values: Callable[[D], object | None] = _no_values
    tokens: bool = True
    cls: bool = True

    def given_by(self, config: Any) -> bool:
        """Whether a kind of data set, a class or its settings, has such labels."""
        return hasattr(config, self.method)


def _pixels(opened: SegmentationDataset) -> Count:
    counts = dict.fromkeys(opened.class_names, 0)

    def read(index: int) -> None:
        read_image(opened.path(index))
        counted = np.bincount(opened.label(index).ravel(), minlength=256).tolist()
        for name, more in zip(opened.class_names, counted, strict=False):
            counts[name] += more

    return counts, read


def _boxes(opened: DetectionDataset) -> Count:
    counts = dict.fromkeys(opened.class_names, 0)

    def read(index: int) -> None:
        read_image(opened.path(index))
        for name in opened.box_labels(index):
            counts[name] += 1
        opened.check_outlines(index)

    return counts, read


def _images(opened: LabelledFolder) -> Count:
    counted = np.bincount(opened.labels, minlength=len(opened.class_names)).tolist()
    return dict(zip(opened.class_names, counted, strict=True)), decoded(opened)[1]


def _metres(opened: DepthDataset) -> Count:
    counts = {"measured": 0, "not measured": 0}

    def read(index: int) -> None:
        metres = opened.depth(index)
        counts["measured"] += int((metres > 0).sum())
        counts["not measured"] += int((metres == 0).sum())

    return counts, read


def _directions(opened: NormalsDataset) -> Count:
    counts = {"known": 0, "not known": 0}

    def read(index: int) -> None:
        valid = opened.read(index).valid
        counts["known"] += int(valid.sum())
        counts["not known"] += int((~valid).sum())

    return counts, read


def _frames(opened: SequenceDataset) -> Count:
    def read(index: int) -> None:
        read_image(opened.path(index))
        opened.label(index)

    return {}, read


def _pairs(opened: KeypointDataset) -> Count:
    counts = dict.fromkeys(opened.class_names, 0)

    def read(index: int) -> None:
        pair = opened.pairs[index]
        for image in (pair.source, pair.target):
            read_image(opened.path(image))
        counts[pair.category] += 1

    return counts, read


_HELD_OUT = (("train", "test"), ("train", "val"))
SEGMENTATION = Label("segmentation", "label maps", "masks", "open_segmentation", _pixels)
DETECTION = Label(
    "detection",
    "boxes",
    "boxes",
    "open_detection",
    _boxes,
    seen_by=(("val",), ("trainval",), ("train",)),
    cls=False,
)
CLASSES = Label(
    "classes", "classes of images", "classes", "open_labelled", _images,
    values=lambda opened: [int(label) for label in opened.labels], tokens=False,
)  # fmt: skip
DEPTH = Label("depth", "depth", "depth", "open_depth", _metres, seen_by=_HELD_OUT)
NORMALS = Label("normals", "surface normals", "normals", "open_normals", _directions, seen_by=_HELD_OUT)
VIDEO = Label(
    "video", "videos", "videos", "open_sequences", _frames,
    lambda opened: [video.name for video in opened.sequences], unit="frames", seen_by=(("val",), ("test",)),
)  # fmt: skip
CORRESPONDENCE = Label(
    "correspondence", "pairs with keypoints", "pairs", "open_keypoints", _pairs,
    lambda opened: [pair.id for pair in opened.pairs], lambda opened: len(opened.pairs), unit="pairs",
    seen_by=(("test",), ("val",)),
)  # fmt: skip

_OWN: tuple[Label[Any], ...] = (
    SEGMENTATION,
    DETECTION,
    CLASSES,
    DEPTH,
    NORMALS,
    VIDEO,
    CORRESPONDENCE,
)
LABELS: Mapping[str, Label[Any]] = Table("labels", {label.name: label for label in _OWN}, Label)
"""The one table of labels, by name: ours, then those of plug-ins."""
