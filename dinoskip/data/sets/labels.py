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
from dinoskip.data.labelled_folder import LabelledFolder
from dinoskip.data.segmentation import SegmentationDataset
from dinoskip.data.sets.signatures import Signature
from dinoskip.io.images import read_image
from dinoskip.plugins import Table

D = TypeVar("D")


class LabelledSplit(Protocol):
    """Interface of an opened split, whatever its label: all that the pipeline itself reads of it.

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
"""Attributes of :class:`LabelledSplit`; an opened split that lacks one is refused before anything is computed."""

Count = tuple[dict[str, int], Callable[[int], None]]
"""Occurrences of each class, and the function that reads an item (:class:`DataError` if damaged) and counts it."""


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
        read_of: indices that ``count``'s reader reads of each item, such as a video's frames; None: the item's own.
        size: how many images, or what else ``unit`` says, ``data check`` counts.
        seen_by: splits in which ``look`` looks for them: all of one of these.
        values: what images are measured against, where it lies in no file: part of keys. None: in ``target_files``.
        tokens: whether tasks with this label read patch tokens, unless they request otherwise; ``cls``: CLS tokens.
        signatures: rules on what its files hold, judged behind those of the kind of data set.
        order: its place among the labels of plug-ins, the smallest first; None: behind those that have one, by name.
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
    read_of: Callable[[D], Sequence[Sequence[int]]] | None = None
    signatures: tuple[Signature, ...] = ()
    order: int | None = None

    def given_by(self, config: Any) -> bool:
        """Whether a kind of data set, a class or its settings, has such labels."""
        return hasattr(config, self.method)

    def indices(self, opened: D) -> Sequence[Sequence[int]]:
        """Return the indices that the reader of :attr:`count` reads of each item."""
        return [(i,) for i in range(len(self.items(opened)))] if self.read_of is None else self.read_of(opened)


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

_OWN: tuple[Label[Any], ...] = (
    SEGMENTATION,
    DETECTION,
    CLASSES,
)
LABELS: Mapping[str, Label[Any]] = Table("labels", {label.name: label for label in _OWN}, Label)
"""The one table of labels, by name: ours, then those of plug-ins."""
