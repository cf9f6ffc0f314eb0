"""Orientation of labels of photographs that EXIF turns: upright, as drawing tools show them, or on the stored pixels.

The size of a mask, or the size that an annotation states, says it where a turn changes the sides. Of photographs that
are turned without that (orientations 2 to 4, and square ones) it is read from the photographs: on borders of labels
they have edges. Only files with such an orientation are decoded; of all others the header alone is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, TypeVar, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dinoskip.data.detection import DetectionDataset
from dinoskip.data.edges import BoxEdges, edge_ranks, mask_level, small_image
from dinoskip.data.segmentation import SegmentationDataset
from dinoskip.errors import DataError
from dinoskip.io.images import exif_orientation, read_image, turn_upright
from dinoskip.runtime.console import log

Reading = Literal["upright", "stored"]
Setting = Literal["auto", "upright", "stored"]
SETTING = "label_orientation"
# From so many files on, the mean difference of ranks that is believed. Measured on VOC, ADE20K and scenes: of masks, no
# resample of three files was wrong by .04; boxes have other things' edges along them: of ten none was wrong by .05.
MARGINS_OF_MASKS = ((3, 0.04), (1, 0.08))
MARGINS_OF_BOXES = ((10, 0.05), (3, 0.1), (1, 0.25))
# Mean rank of edges on the borders of masks that follow their photographs; by chance it is .5. Of one or two files more
# is asked, as of masks that are compared in all eight turns.
FLOORS = ((3, 0.58), (1, 0.65))
JUDGED = 50  # files, evenly spread: rates are at their best from 20 on
MIXED_MASKS, MIXED_BOXES = 0.2, 0.4  # a file that differs so much the other way is no accident


@runtime_checkable
class Oriented(Protocol):
    """A split with labels that lie on photographs and say by their size, if they can, how."""

    @property
    def labels_upright(self) -> bool:
        """Whether labels whose size does not say it are drawn upright."""

    @property
    def labels_by(self) -> str:
        """The evidence for :attr:`labels_upright`; "" where it is not asked."""

    @property
    def image_paths(self) -> tuple[Path, ...]:
        """The path of each image."""

    def label_frame(self, index: int) -> Reading | None:
        """Return the frame that the size of a label implies: upright or stored pixels, None if neither."""


@runtime_checkable
class Bordered(Oriented, Protocol):
    """One whose labels have borders that edges of photographs follow, other than masks and boxes."""

    def border(self, index: int, size: tuple[int, int]) -> NDArray[np.bool_] | None:
        """Return the borders of labels ``index`` as they are stored, bool at ``size``; None for too short ones."""


D = TypeVar("D", bound=Oriented)


@dataclass
class _Evidence:
    """Evidence of the files.

    It holds the frame of each file whose size implies it, and for each other file how much better its labels follow it
    upright.
    """

    by_size: dict[str, list[str]] = field(default_factory=lambda: {"upright": [], "stored": []})
    unsaid: list[int] = field(default_factory=list)
    gains: list[tuple[float, str]] = field(default_factory=list)
    levels: list[tuple[float, float]] = field(default_factory=list)  # upright, stored


class Orientation(NamedTuple):
    """Frame of the labels of photographs that EXIF turns, where sizes do not say it, and the evidence for it."""

    reading: Reading
    by: str


def with_orientation(opened: D, setting: Setting, where: str, faults: list[str] | None = None) -> D:
    """Return a split whose labels are read as ``setting`` says, or, by ``auto``, as its own photographs show.

    Sizes that tell are believed in any case. ``where`` names the split. Raises :class:`DataError` with the setting
    where nothing tells; with ``faults`` that is noted there, and labels are read as stored.
    """
    if setting != "auto":
        return _read_as(opened, "upright" if setting == "upright" else "stored", "set" if _turned(opened) else "")
    try:
        found = infer(opened, where)
    except DataError as error:
        if faults is None:
            raise
        faults.append(str(error) if error.hint is None else f"{error.message} ({error.hint})")
        return opened
    if found is None:
        return opened
    log.info("%s: labels of photographs that EXIF turns are read as %s, by %s", where, found.reading, found.by)
    return _read_as(opened, found.reading, found.by)


def _read_as(opened: D, reading: Reading, by: str) -> D:
    return cast(D, replace(cast(Any, opened), labels_upright=reading == "upright", labels_by=by))


def label_orientation(opened: object) -> str:
    """Say for a row how labels were taken: ``upright (set)``; "" where no photograph is turned or sizes say it."""
    by = getattr(opened, "labels_by", "")
    return f"{'upright' if getattr(opened, 'labels_upright', False) else 'stored'} ({by})" if by else ""


def _turned(opened: Oriented) -> list[tuple[int, int]]:
    """Positions and EXIF orientations of the images that have one of 2 to 8; files that cannot be read are passed."""
    found = []
    for index, path in enumerate(opened.image_paths):
        try:
            orientation = exif_orientation(path)
        except DataError:
            continue  # named where it is read
        if orientation > 1:
            found.append((index, orientation))
    return found


def infer(opened: Oriented, where: str) -> Orientation | None:
    """Say how labels lie whose sizes do not tell it; None for a split without such a photograph.

    Raises :class:`DataError` naming the setting if photographs show neither, or some the one and some the other.
    """
    turned = _turned(opened)
    if not turned:
        return None
    evidence, boxes = _Evidence(), isinstance(opened, DetectionDataset)
    for index, _ in turned:
        try:
            said = opened.label_frame(index)
        except DataError:
            continue  # named where it is read
        if said is None:
            evidence.unsaid.append(index)
        else:
            evidence.by_size[said].append(opened.image_paths[index].name)
    if not evidence.unsaid:
        return None
    orientations = dict(turned)
    step = max(1, len(evidence.unsaid) // JUDGED)
    for index in evidence.unsaid[::step][:JUDGED]:
        try:
            levels = _both_levels(opened, index, orientations[index])
        except DataError:
            continue
        if levels is not None:
            evidence.levels.append(levels)
            evidence.gains.append((levels[0] - levels[1], opened.image_paths[index].name))
    return _judge(evidence, where, boxes=boxes)


def _judge(evidence: _Evidence, where: str, *, boxes: bool) -> Orientation:
    gains = np.array([gain for gain, _ in evidence.gains])
    first = f"{where}: {len(evidence.unsaid)} photographs are turned by EXIF and their labels' sizes do not say whether"
    remedy = f"set {SETTING}: upright (drawn on the photograph as it is seen) or stored (drawn on its pixels as stored)"
    mixed = MIXED_BOXES if boxes else MIXED_MASKS
    for_one, for_other = gains > mixed, gains < -mixed
    if min(for_one.sum(), for_other.sum()) >= max(1, len(gains) // 10):
        names = [evidence.gains[int(np.argmax(sign * gains))][1] for sign in (1, -1)]
        text = (
            f"{where}: labels of some photographs that EXIF turns are drawn upright ({names[0]}), of others as stored"
        )
        raise DataError(f"{text} ({names[1]})", f"put them into two data sets, each with its {SETTING}")
    margins = MARGINS_OF_BOXES if boxes else MARGINS_OF_MASKS
    if len(gains) and abs(gains.mean()) > _of_count(margins, len(gains)) and (boxes or _follow(evidence)):
        reading: Reading = "upright" if gains.mean() > 0 else "stored"
        return Orientation(reading, f"edges along the labels of {len(gains)} photographs")
    by_size = evidence.by_size
    if bool(by_size["upright"]) != bool(by_size["stored"]):
        reading = "upright" if by_size["upright"] else "stored"
        return Orientation(reading, f"the sizes of {len(by_size[reading])} others")
    raise DataError(
        f"{first} they are drawn upright, such as of {_first(evidence)}; the photographs do not show it", remedy
    )


def _of_count(table: Sequence[tuple[int, float]], count: int) -> float:
    return next(value for least, value in table if count >= least)


def _follow(evidence: _Evidence) -> bool:
    """Whether masks, read the better way, follow their photographs at all."""
    level = max(float(np.mean(of_reading)) for of_reading in zip(*evidence.levels, strict=True))
    return level >= _of_count(FLOORS, len(evidence.levels))


def _first(evidence: _Evidence) -> str:
    return evidence.gains[0][1] if evidence.gains else "those without a border in their labels"


def _both_levels(opened: Oriented, index: int, orientation: int) -> tuple[float, float] | None:
    """Return how well the labels of an image follow it if they are drawn upright, and as stored.

    The result is None for labels without borders.
    """
    stored = small_image(read_image(opened.image_paths[index], upright=False))
    views = turn_upright(stored, orientation), stored
    if isinstance(opened, SegmentationDataset):
        labels = opened.drawn_labels(index)
        upright, as_stored = (mask_level(edge_ranks(view), labels) for view in views)
    elif isinstance(opened, Bordered):
        upright, as_stored = (_border_level(opened, index, view) for view in views)
    else:
        assert isinstance(opened, DetectionDataset)
        by_view = zip(views, (True, False), strict=True)
        upright, as_stored = (
            BoxEdges.of(view).level(opened.boxes_in_shares(index, upright=seen)) for view, seen in by_view
        )
    return None if upright is None or as_stored is None else (upright, as_stored)


def _border_level(opened: Bordered, index: int, view: NDArray[np.uint8]) -> float | None:
    """Mean rank of edges of a small picture (H, W, 3) on the borders of labels."""
    border = opened.border(index, (view.shape[0], view.shape[1]))
    return None if border is None else float(edge_ranks(view)[border].mean())
