"""How labels lie of photographs that EXIF turns: upright, as drawing tools show them, or on the pixels as stored.

The size of a mask, or the size that an annotation states, says it where a turn changes the sides. Of photographs that
are turned without that (orientations 2 to 4, and square ones) it is read from the photographs: on borders of labels
they have edges. Only files with such an orientation are decoded; of all others the header alone is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from dinoskip.data.detection import DetectionDataset
from dinoskip.data.segmentation import IGNORE, SegmentationDataset
from dinoskip.errors import DataError
from dinoskip.io.images import exif_orientation, opencv, read_image, turn_upright
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
SIDE = 192  # pixels of the longer side at which edges are looked for
FEWEST = 20  # pixels of border in a file that says something
Ranks = NDArray[np.float32]

D = TypeVar("D", SegmentationDataset, DetectionDataset)


@dataclass
class _Evidence:
    """What files say: the sizes of some, and of each other one how much better its labels follow it upright."""

    by_size: dict[str, list[str]] = field(default_factory=lambda: {"upright": [], "stored": []})
    unsaid: list[int] = field(default_factory=list)
    gains: list[tuple[float, str]] = field(default_factory=list)
    levels: list[tuple[float, float]] = field(default_factory=list)  # upright, stored


class Orientation(NamedTuple):
    """How labels were taken of photographs that EXIF turns where sizes do not say it, and by what."""

    reading: Reading
    by: str


def with_orientation(opened: D, setting: Setting, where: str, faults: list[str] | None = None) -> D:
    """Return a split whose labels are read as ``setting`` says, or, by ``auto``, as its own photographs show.

    Sizes that tell are believed in any case. ``where`` names the split. Raises :class:`DataError` with the setting
    where nothing tells; with ``faults`` that is noted there, and labels are read as stored.
    """
    if setting != "auto":
        return replace(opened, labels_upright=setting == "upright", labels_by="set" if _turned(opened) else "")
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
    return replace(opened, labels_upright=found.reading == "upright", labels_by=found.by)


def label_orientation(opened: object) -> str:
    """Say for a row how labels were taken: ``upright (set)``; "" where no photograph is turned or sizes say it."""
    if not isinstance(opened, SegmentationDataset | DetectionDataset) or not opened.labels_by:
        return ""
    return f"{'upright' if opened.labels_upright else 'stored'} ({opened.labels_by})"


def _turned(opened: SegmentationDataset | DetectionDataset) -> list[tuple[int, int]]:
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


def infer(opened: SegmentationDataset | DetectionDataset, where: str) -> Orientation | None:
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


def _both_levels(
    opened: SegmentationDataset | DetectionDataset, index: int, orientation: int
) -> tuple[float, float] | None:
    """How well the labels of an image follow it if they are drawn upright, and as stored; None without borders."""
    stored = _small(read_image(opened.image_paths[index], upright=False))
    views = turn_upright(stored, orientation), stored
    if isinstance(opened, SegmentationDataset):
        labels = opened.read_labels(index)
        upright, as_stored = (mask_level(edge_ranks(view), labels) for view in views)
    else:
        by_view = zip(views, (True, False), strict=True)
        upright, as_stored = (box_level(view, opened.boxes_in_shares(index, upright=seen)) for view, seen in by_view)
    return None if upright is None or as_stored is None else (upright, as_stored)


def _small(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    height, width = image.shape[:2]
    scale = min(1.0, SIDE / max(height, width))
    size = max(1, round(width * scale)), max(1, round(height * scale))
    small: NDArray[Any] = opencv().resize(image, size, interpolation=opencv().INTER_AREA)
    return small.astype(np.uint8)


def _slopes(image: NDArray[np.uint8]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The change of colour along x and along y, float32 (H, W) each, after a blur of one pixel."""
    cv2 = opencv()
    smooth = cv2.GaussianBlur(image.astype(np.float32), (0, 0), 1.0)
    across, down = (np.sqrt((np.asarray(cv2.Sobel(smooth, -1, *axes)) ** 2).sum(2)) for axes in ((1, 0), (0, 1)))
    return across, down


def _ranks(values: NDArray[np.float32]) -> Ranks:
    """Widen by one pixel, and return each pixel's rank in its image, 0..1; equal values share their mean rank."""
    widened = opencv().dilate(values, np.ones((3, 3), np.uint8))
    _, places, counts = np.unique(widened, return_inverse=True, return_counts=True)
    mean_rank = np.cumsum(counts) - (counts - 1) / 2 - 0.5
    return np.asarray((mean_rank / widened.size).astype(np.float32)[places.reshape(widened.shape)])


def edge_ranks(image: NDArray[np.uint8]) -> Ranks:
    """Rank the edges of a picture (H, W, 3): float32 (H, W), near 1 on its strongest edges."""
    across, down = _slopes(image)
    return _ranks(np.hypot(across, down))


def mask_level(ranks: Ranks, labels: NDArray[np.uint8]) -> float | None:
    """Mean rank of edges on the borders of a label map, void given to its nearest label; None for too short borders."""
    cv2 = opencv()
    small = cv2.resize(labels, ranks.shape[::-1], interpolation=cv2.INTER_NEAREST)
    void = small == IGNORE
    if void.all():
        return None
    if void.any():
        _, nearest = cv2.distanceTransformWithLabels(
            void.astype(np.uint8), cv2.DIST_L2, 5, labelType=cv2.DIST_LABEL_PIXEL
        )
        by_number = np.zeros(int(nearest.max()) + 1, small.dtype)
        by_number[nearest[~void]] = small[~void]
        small = by_number[nearest]
    border = np.zeros(small.shape, bool)
    down, across = small[1:] != small[:-1], small[:, 1:] != small[:, :-1]
    border[1:] |= down
    border[:-1] |= down
    border[:, 1:] |= across
    border[:, :-1] |= across
    return float(ranks[border].mean()) if border.sum() >= FEWEST else None


def box_level(image: NDArray[np.uint8], boxes: Ranks) -> float | None:
    """Return how much boxes, x1 y1 x2 y2 in shares of the sides of a picture, follow it: the mean over boxes.

    That is the mean rank of edges across each side, on its middle two thirds, sides at the picture's border left out,
    and half the distance between the colours inside and those in a ring around. None if no box says anything.
    """
    height, width = image.shape[:2]
    across, down = (_ranks(slope) for slope in _slopes(image))
    coarse = (image.astype(np.int64) // 64) @ np.array([16, 4, 1])
    found = []
    for box in np.round(boxes * np.array([width, height] * 2)).astype(int):
        x1, y1, x2, y2 = box.tolist()
        if min(x2 - x1, y2 - y1) < 6:
            continue  # too small at this size to have sides
        ys, xs = slice(y1 + (y2 - y1) // 6, y2 - (y2 - y1) // 6), slice(x1 + (x2 - x1) // 6, x2 - (x2 - x1) // 6)
        sides = [across[ys, x - 1 : x + 1].mean() for x in (x1, x2) if 2 <= x <= width - 2]
        sides += [down[y - 1 : y + 1, xs].mean() for y in (y1, y2) if 2 <= y <= height - 2]
        if sides:
            found.append(float(np.mean(sides)) + 0.5 * _distance(coarse, (x1, y1, x2, y2)))
    return float(np.mean(found)) if found else None


def _distance(coarse: NDArray[np.int64], box: tuple[int, int, int, int]) -> float:
    """Half the summed difference, 0..1, between the shares of coarse colours in a box and in a ring around it."""
    x1, y1, x2, y2 = box
    dx, dy = max(1, (x2 - x1) // 4), max(1, (y2 - y1) // 4)
    inside = np.bincount(coarse[max(0, y1) : y2, max(0, x1) : x2].ravel(), minlength=64)
    around = coarse[max(0, y1 - dy) : y2 + dy, max(0, x1 - dx) : x2 + dx]
    ring = np.bincount(around.ravel(), minlength=64) - inside
    if not inside.sum() or not ring.sum():
        return 0.0
    return float(np.abs(inside / inside.sum() - ring / ring.sum()).sum() / 2)
