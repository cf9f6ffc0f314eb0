"""Counts of the values in the label files of a split, and how well labels follow their photographs.

The latter is measured on at most a hundred files. :mod:`dinoskip.data.sets.signatures` judges the counts.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dinoskip.data.detection import DetectionDataset
from dinoskip.data.equal_images import ImageFiles, copies_in_classes
from dinoskip.data.labelled_folder import LabelledFolder
from dinoskip.data.listing import evenly_spread
from dinoskip.data.mask_shapes import MaskShapes
from dinoskip.data.segmentation import IGNORE, ILLEGAL, SegmentationDataset, class_map
from dinoskip.data.turns import BorderedMaps, TurnLevels, turn_levels
from dinoskip.errors import DataError, guard
from dinoskip.io.files import hash_of
from dinoskip.io.images import read_depth, read_mask, stored_geometry

VERSION = 5
"""Of what is counted: part of the key under which it is kept."""
MOST = 5000
"""Label files of a split that are read, of more an even sample: 1,000 masks of 500 × 375 take about 2 s on one core."""
MOST_DEEP = 100
"""Files of which more than the values is asked (depth, annotations, the shape of regions, segments in colours): the
rates of SIGNATURES do not change beyond 20."""
MOST_MEASURED = 40
"""Files, or pairs of images, of a split of :class:`MeasuredLabels`: the rates of SIGNATURES hardly change beyond 20,
and maps of normals have several MB each."""
_DEEP = 0.015  # of the short side: the void that VOC draws around objects is thinner than twice this
_MOST_AREA = 0.2  # of an image that one class counts with
_VALUES = 256  # of a mask of 8 bits
_QUANTILES = (2, 50, 99)  # percent: robust ends and the middle; a few wrong pixels move neither

Named = Callable[[Path], frozenset[str] | None]
"""The classes that another annotation of an image names, None where it has none."""


@runtime_checkable
class NumberedMaps(Protocol):
    """A split whose ``target_files`` are label maps as they are: ``value_numbers[v]`` is the class of value v."""

    @property
    def value_numbers(self) -> Sequence[int]: ...


@runtime_checkable
class DepthMaps(Protocol):
    """A split whose ``depth_paths`` are maps of 16 bits; a metre has the value ``per_metre``, 0 is not measured."""

    @property
    def depth_paths(self) -> Sequence[Path]: ...
    @property
    def per_metre(self) -> float: ...


@runtime_checkable
class MeasuredLabels(Protocol):
    """A split that says itself what its labels add to sums: item i of ``measured_items`` adds ``measured(i)``.

    Items are images, or what else the label has. ``measured`` raises :class:`DataError` for one that cannot be read.
    """

    @property
    def measured_items(self) -> int: ...
    def measured(self, index: int, /) -> Mapping[str, float]: ...


@dataclass(frozen=True)
class LabelValues:
    """Counts over the label files of one or more splits with the same meaning.

    ``numbers[v]`` is the class of value v as the settings have it, 255 ignored, -1 none. ``files[v]`` and ``pixels[v]``
    say how many files and pixels hold v. ``void`` is the sum over files of the share of 255; ``thick`` of ``with_rim``
    files have most of their 255 deep inside its regions. ``unreadable`` and ``foreign`` count files that cannot be
    read, and that hold a value without a meaning; the first ones are named. ``agreeing`` of ``compared`` files have no
    class but those that another annotation of their image names. ``heights[v]`` is the sum over ``with_heights`` files
    of how far v lies above the middle (-.5 to .5 of the height) times its share of the pixels, at most .2.
    ``quantiles`` are the 2nd, 50th and 99th percentile of depth as stored, ``per_metre`` the unit of it, ``outdoor``
    whether it is of streets. ``turns`` says
    how well labels follow their photographs, turned in eight ways. ``misfits`` counts masks of another size than their
    images, ``swapped`` those of them that are as high as these are wide. Of
    ``boxes``, ``unit_boxes`` lie in the first pixel of their images, and ``flat_boxes`` have a side of less than a
    pixel; ``objects`` counts those of each class. ``sums``
    are (split, name, sum over items) of :class:`MeasuredLabels`. Of ``compared_files`` images with a class, ``copies``
    lie in another class, too.

    Of at most :data:`MOST_DEEP` masks: ``in_order[k]`` counts those whose values, but for 0 and 255, are just 1 to k,
    of ``with_objects`` that have any. ``enclosed`` of ``with_background`` masks have a background, by its name in the
    list, that hardly touches the rim of the image. Of ``border`` pixels with another value among their eight
    neighbours, ``graded[v]`` have a value v that lies between others nearby and is less than 3 pixels wide there;
    ``solid[v]`` pixels of v lie in squares of three.
    """

    label: str
    splits: tuple[str, ...]
    names: tuple[str, ...]
    numbers: tuple[int, ...]
    total: int = 0
    read: int = 0
    files: tuple[int, ...] = (0,) * _VALUES
    pixels: tuple[int, ...] = (0,) * _VALUES
    void: float = 0.0
    thick: int = 0
    with_rim: int = 0
    unreadable: int = 0
    first_unreadable: str = ""
    foreign: int = 0
    first_foreign: str = ""
    compared: int = 0
    agreeing: int = 0
    first_differing: str = ""
    heights: tuple[float, ...] = (0.0,) * _VALUES
    with_heights: int = 0
    quantiles: tuple[float, ...] = ()
    per_metre: float = 0.0
    outdoor: bool = False
    turns: TurnLevels = field(default_factory=TurnLevels)
    misfits: int = 0
    swapped: int = 0
    first_misfit: str = ""
    boxes: int = 0
    unit_boxes: int = 0
    flat_boxes: int = 0
    compared_files: int = 0
    copies: int = 0
    first_copy: str = ""
    objects: tuple[int, ...] = ()
    sums: tuple[tuple[str, str, float], ...] = ()
    in_order: tuple[int, ...] = (0,) * _VALUES
    with_objects: int = 0
    enclosed: int = 0
    with_background: int = 0
    border: int = 0
    graded: tuple[int, ...] = (0,) * _VALUES
    solid: tuple[int, ...] = (0,) * _VALUES

    def summed(self, name: str, split: str | None = None) -> float:
        """Return the sum of this name, over all splits or of one; 0 without it."""
        return sum(value for of, one, value in self.sums if one == name and split in {None, of})

    @property
    def values(self) -> tuple[int, ...]:
        """The values that occur, in ascending order."""
        return tuple(value for value, count in enumerate(self.files) if count)

    @property
    def classes(self) -> tuple[int, ...]:
        """The numbers of the classes that occur, in ascending order."""
        return tuple(sorted({self.numbers[value] for value in self.values} - {IGNORE, ILLEGAL}))

    @property
    def never_seen(self) -> tuple[str, ...]:
        """The names of the classes that do not occur."""
        seen = set(self.classes)
        return tuple(name for number, name in enumerate(self.names) if number not in seen)

    def __add__(self, other: LabelValues) -> LabelValues:
        counts = (
            "total", "read", "void", "thick", "with_rim", "unreadable", "foreign", "compared", "agreeing",
            "with_heights", "turns", "misfits", "swapped", "boxes", "unit_boxes", "flat_boxes", "sums",
            "compared_files", "copies", "with_objects", "enclosed", "with_background", "border",
        )  # fmt: skip
        tables: dict[str, Any] = {
            name: tuple(a + b for a, b in zip(getattr(self, name), getattr(other, name), strict=True))
            for name in ("files", "pixels", "heights", "in_order", "graded", "solid")
        }
        firsts = ("first_unreadable", "first_foreign", "first_differing", "quantiles", "first_misfit", "first_copy")
        return replace(
            self,
            splits=self.splits + other.splits,
            objects=tuple(a + b for a, b in zip(self.objects, other.objects, strict=False)),
            **tables,
            **{name: getattr(self, name) + getattr(other, name) for name in counts},
            **{name: getattr(self, name) or getattr(other, name) for name in firsts},
        )

    def plain(self) -> dict[str, Any]:
        """Its fields as JSON has them."""
        return asdict(self)

    @classmethod
    def of_plain(cls, stored: dict[str, Any]) -> LabelValues:
        """The inverse of :meth:`plain`; TypeError for other fields."""
        fields, turns = (
            {name: tuple(it) if isinstance(it, list) else it for name, it in of.items()}
            for of in (stored, stored.get("turns", {}))
        )
        sums = tuple((str(split), str(name), float(value)) for split, name, value in fields.get("sums", ()))
        known: dict[str, Any] = {**fields, "turns": TurnLevels(**dict[str, Any](turns)), "sums": sums}
        return cls(**known)


def can_be_counted(opened: Any) -> bool:
    """Whether :func:`label_values` knows the labels of an opened split."""
    own = SegmentationDataset | DepthMaps | NumberedMaps | LabelledFolder | DetectionDataset | MeasuredLabels
    return isinstance(opened, own)


def _empty(label: str, opened: Any) -> LabelValues:
    names = tuple(opened.class_names)
    if isinstance(opened, SegmentationDataset):
        numbers = (opened.remap or class_map(names)).table if _has_values(opened) else class_map(names).table
    elif isinstance(opened, NumberedMaps):
        numbers = np.array(opened.value_numbers)
    else:
        numbers = np.full(_VALUES, ILLEGAL)
    return LabelValues(label, (opened.split if hasattr(opened, "split") else "",), names, tuple(numbers.tolist()))


def _has_values(opened: SegmentationDataset) -> bool:
    """Whether masks hold numbers of classes: not colours, and not what a kind of its own reads."""
    in_colours = opened.remap is not None and opened.remap.colours is not None
    return type(opened).read_labels is SegmentationDataset.read_labels and not in_colours


def _sample(opened: Any) -> list[int]:
    """Positions of the label files that are read, evenly spread."""
    if isinstance(opened, MeasuredLabels):
        return evenly_spread(opened.measured_items, MOST_MEASURED)
    of_values = not isinstance(opened, SegmentationDataset) or _has_values(opened)
    most = MOST if of_values and not isinstance(opened, DepthMaps | DetectionDataset) else MOST_DEEP
    return evenly_spread(len(opened), most)


def fingerprint(label: str, opened: Any, more: Sequence[str] = ()) -> str:
    """Hex sha256 of what the counts depend on: names of all label files, sizes and times of those read, the meaning.

    ``more`` are words that what is read beside them depends on. Raises :class:`DataError` for a file that is missing.
    """
    empty = _empty(label, opened)
    meaning = [VERSION, label, list(empty.names), list(empty.numbers), getattr(opened, "per_metre", 0)]
    meaning += [bool(getattr(opened, "outdoor", False))]
    if isinstance(opened, LabelledFolder):
        images = ImageFiles.of(opened, opened.root).fingerprint
        return hash_of([*meaning, list(more), [int(number) for number in opened.labels], images])
    files = opened.target_files
    one_for_all = len(files) != len(opened)
    looked_at = list(files) if one_for_all else [files[index] for index in _sample(opened)]
    if _follows(opened):
        looked_at += [opened.path(index) for index in evenly_spread(len(opened), MOST_DEEP)]
        more = [*more, *opened.ids, str(getattr(opened, "labels_upright", ""))]
    marks = []
    for path in looked_at:
        with guard(path, "label"):
            status = os.stat(path)
        marks.append([status.st_size, status.st_mtime_ns])
    return hash_of([*meaning, list(more), [str(path) for path in files], marks])


def _follows(opened: Any) -> bool:
    """Whether the labels of a split have borders that edges of its photographs follow."""
    return isinstance(opened, SegmentationDataset | NumberedMaps | DetectionDataset | BorderedMaps)


def label_values(label: str, opened: Any, named: Named | None = None) -> LabelValues:
    """Count what the label files of an opened split hold. ``named`` gives the classes of another annotation.

    A file that cannot be read, or holds a value without a meaning, is counted and raises nothing.
    """
    found, chosen = replace(_empty(label, opened), total=len(opened)), _sample(opened)
    if isinstance(opened, LabelledFolder):
        counts = np.bincount(opened.labels, minlength=_VALUES)[:_VALUES]
        numbers = tuple(range(len(found.names)))
        copies = copies_in_classes(ImageFiles.of(opened, opened.root), opened.labels.tolist())
        return replace(
            found, read=len(opened), files=tuple(counts.tolist()), numbers=(numbers * _VALUES)[:_VALUES],
            copies=copies.count, compared_files=copies.looked_at, first_copy=" = ".join(filter(None, copies.example)),
        )  # fmt: skip
    if isinstance(opened, DepthMaps):
        return replace(_depths(found, opened, chosen), turns=turn_levels(opened, chosen))
    if isinstance(opened, MeasuredLabels):
        turns = turn_levels(opened, chosen) if isinstance(opened, BorderedMaps) else TurnLevels()
        return replace(_measured(found, opened, chosen), turns=turns)
    turns = turn_levels(opened, evenly_spread(len(opened), MOST_DEEP))
    if isinstance(opened, DetectionDataset):
        return _boxes(replace(found, read=len(chosen), turns=turns), opened, chosen)
    return replace(_Counting(found, opened, named).over(chosen), turns=turns)


def _boxes(found: LabelValues, opened: DetectionDataset, chosen: Sequence[int]) -> LabelValues:
    count, unit, flat, failed, each = 0, 0, 0, list[str](), dict.fromkeys(found.names, 0)
    for index in chosen:
        try:
            objects = opened.objects(index)
        except DataError as error:
            failed.append(f"{opened.path(index).name}: {error}")
            continue
        count += len(objects)
        for box in objects:
            each[box.label] += 1
        unit += sum(max(box.x2, box.y2) <= 1 for box in objects)
        flat += sum(min(box.x2 - box.x1, box.y2 - box.y1) < 1 for box in objects)
    first = next(iter(failed), "")
    return replace(
        found, boxes=count, unit_boxes=unit, flat_boxes=flat, unreadable=len(failed), first_unreadable=first,
        objects=tuple(each.values()),
    )  # fmt: skip


def _depths(found: LabelValues, opened: DepthMaps, chosen: Sequence[int]) -> LabelValues:
    counts, failed, floors = np.zeros(65_536, dtype=np.int64), list[str](), Counter[str]()
    for index in chosen:
        try:
            depth = read_depth(opened.depth_paths[index])
        except DataError as error:
            failed.append(str(error))
            continue
        counts += np.bincount(depth.ravel(), minlength=65_536)
        floors.update(_floor(depth))
    counts[0] = 0
    quantiles: tuple[float, ...] = ()
    if total := int(counts.sum()):
        running = np.cumsum(counts)
        quantiles = tuple(float(np.searchsorted(running, total * share / 100)) for share in _QUANTILES)
    return replace(
        found, read=len(chosen), unreadable=len(failed), first_unreadable=failed[0] if failed else "",
        quantiles=quantiles, per_metre=opened.per_metre, outdoor=bool(getattr(opened, "outdoor", False)),
        sums=tuple((found.splits[0], name, float(value)) for name, value in sorted(floors.items())),
    )  # fmt: skip


def _floor(depth: NDArray[np.uint16]) -> list[str]:
    """Whether the lowest fifth of a map is nearer than the fifth in the middle, as floors and roads are."""
    fifth = depth.shape[0] // 5
    below, middle = depth[-fifth:], depth[2 * fifth : 3 * fifth]
    if fifth < 1 or not below.any() or not middle.any():
        return []
    low, mid = (float(np.median(part[part > 0])) for part in (below, middle))
    return [] if low == mid else ["floor nearer" if low < mid else "floor farther"]


def _measured(found: LabelValues, opened: MeasuredLabels, chosen: Sequence[int]) -> LabelValues:
    sums, failed = Counter[str](), list[str]()
    for index in chosen:
        try:
            sums.update(opened.measured(index))
        except DataError as error:
            failed.append(str(error))
    return replace(
        found, total=opened.measured_items, read=len(chosen), unreadable=len(failed),
        first_unreadable=next(iter(failed), ""),
        sums=tuple((found.splits[0], name, float(value)) for name, value in sorted(sums.items())),
    )  # fmt: skip


def _interior(region: NDArray[np.bool_], radius: int) -> NDArray[np.bool_]:
    """Whether all pixels up to ``radius`` away in rows and columns are of the region (H, W), or outside the image."""
    side = 2 * radius + 1
    for axis in (0, 1):
        around = [(radius, radius), (0, 0)] if axis == 0 else [(0, 0), (radius, radius)]
        running = np.cumsum(np.pad(region, around, constant_values=True), axis=axis, dtype=np.int32)
        running = np.pad(running, [(1, 0), (0, 0)] if axis == 0 else [(0, 0), (1, 0)])
        upper, lower = (slice(side, None), slice(None, -side))
        region = (running[upper] - running[lower] if axis == 0 else running[:, upper] - running[:, lower]) == side
    return region


class _Counting:
    """Counts over the masks of a split, or the label maps of its videos."""

    def __init__(self, empty: LabelValues, opened: Any, named: Named | None) -> None:
        self.empty, self.opened, self.named = empty, opened, named
        self.table = np.array(empty.numbers)
        self.files, self.pixels = (np.zeros(_VALUES, dtype=np.int64) for _ in range(2))
        self.void, self.thick, self.with_rim = 0.0, 0, 0
        self.failed, self.foreign = list[str](), list[str]()
        self.compared, self.differing = 0, list[str]()
        self.heights, self.with_heights = np.zeros(_VALUES), 0
        self.misfits, self.swapped = list[str](), 0
        self.shapes = MaskShapes(empty.names, empty.numbers)

    def over(self, chosen: Sequence[int]) -> LabelValues:
        """Read the files at these positions."""
        of_values = isinstance(self.opened, NumberedMaps) or _has_values(self.opened)
        paths = self.opened.target_files
        for index in chosen:
            try:
                labels = read_mask(paths[index]) if of_values else self.opened.read_labels(index)
            except DataError as error:
                self.failed.append(str(error))
                continue
            self._add(index, labels)
        return replace(
            self.empty, total=len(self.opened), read=len(chosen), files=tuple(self.files.tolist()),
            pixels=tuple(self.pixels.tolist()), void=self.void, thick=self.thick, with_rim=self.with_rim,
            unreadable=len(self.failed), first_unreadable=next(iter(self.failed), ""), foreign=len(self.foreign),
            first_foreign=next(iter(self.foreign), ""), compared=self.compared,
            agreeing=self.compared - len(self.differing), first_differing=next(iter(self.differing), ""),
            heights=tuple(self.heights.tolist()), with_heights=self.with_heights, misfits=len(self.misfits),
            swapped=self.swapped, first_misfit=next(iter(self.misfits), ""), **self.shapes.counts(),
        )  # fmt: skip

    def _add(self, index: int, labels: NDArray[np.uint8]) -> None:
        counts = np.bincount(labels.ravel(), minlength=_VALUES)
        held = counts > 0
        self.files += held
        self.pixels += counts
        self.void += counts[IGNORE] / max(labels.size, 1)
        with suppress(DataError):  # of an image that cannot be read its own check tells
            self._compare_sizes(index, labels.shape)
        foreign = np.flatnonzero(held & (self.table == ILLEGAL))
        if foreign.size:
            self.foreign.append(f"{self.opened.target_files[index]} holds {foreign[0]}")
        if counts[IGNORE] and self.table[IGNORE] == IGNORE and self.with_rim < MOST_DEEP:
            self._add_rim(labels)
        if self.with_heights < MOST_DEEP:
            self._add_heights(labels, counts)
            self.shapes.add(labels, held)
        if self.named is not None and self.compared < MOST_DEEP:
            self._compare(index, held)

    def _compare_sizes(self, index: int, stored: tuple[int, ...]) -> None:
        (height, width), orientation = stored_geometry(self.opened.path(index))
        shape = stored[::-1] if getattr(self.opened, "turn", 1) >= 5 else stored
        if shape == (height, width) or (orientation >= 5 and shape == (width, height)):
            return
        self.swapped += shape == (width, height)
        text = f"is {stored[1]}×{stored[0]} pixels, its image {self.opened.path(index).name} {width}×{height}"
        self.misfits.append(f"{self.opened.target_files[index]} {text}")

    def _add_rim(self, labels: NDArray[np.uint8]) -> None:
        void = labels == IGNORE
        deep = int(_interior(void, max(int(_DEEP * min(labels.shape)), 1)).sum())
        self.thick += 2 * deep > int(void.sum())
        self.with_rim += 1

    def _add_heights(self, labels: NDArray[np.uint8], counts: NDArray[np.int64]) -> None:
        height, width = labels.shape
        rows = np.repeat((np.arange(height) + 0.5) / max(height, 1), width)
        middle = np.bincount(labels.ravel(), weights=rows, minlength=_VALUES) / np.maximum(counts, 1)
        self.heights += (0.5 - middle) * np.minimum(counts / max(labels.size, 1), _MOST_AREA) * (counts > 0)
        self.with_heights += 1

    def _compare(self, index: int, held: NDArray[np.bool_]) -> None:
        assert self.named is not None
        other = None
        with suppress(DataError):  # said by who reads the boxes
            other = self.named(self.opened.image_paths[index])
        if other is None:
            return
        names = self.empty.names
        mine = {names[number] for number in self.table[held] if 0 < number < len(names)}  # without the background
        self.compared += 1
        if not mine <= other:
            self.differing.append(f"{self.opened.target_files[index]} has {_listed(mine)}, its boxes {_listed(other)}")


def _listed(names: set[str] | frozenset[str]) -> str:
    return ", ".join(sorted(names)) or "none"
