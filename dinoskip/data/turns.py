"""Measures of how well labels follow their photographs, as they are and turned in the other seven ways EXIF numbers.

Masks and boxes that were mirrored or rotated on their way follow their photographs only when they are turned back;
labels of other photographs follow them in no way. Only borders are asked: whether regions are of one colour is right
for 61 to 70 % of single photographs, borders for 95 to 99 %.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dinoskip.data.detection import DetectionDataset
from dinoskip.data.edges import FEWEST, BoxEdges, borders_of, edge_ranks, small_image, without_void
from dinoskip.errors import DataError, guard
from dinoskip.io.images import read_image, turn_upright

TURNS = range(1, 9)
"""EXIF's numbers of the turns: 1 leaves a picture as it is."""
TURN_NAMES = (
    "as they are", "mirrored left to right", "rotated by 180°", "mirrored top to bottom", "transposed",
    "rotated by 90° clockwise", "transposed over the other diagonal", "rotated by 90° counter-clockwise",
)  # fmt: skip


class BoxChange(NamedTuple):
    """A way in which all boxes of a set may be wrong, as mistakes of units and corners make them.

    ``matrix`` float32 (4, 4) makes x1 y1 x2 y2 (K, 4) right from its left. ``margins``: by how much boxes must follow
    better from so many files on. ``text`` says how they are changed.
    """

    text: str
    remedy: str
    matrix: NDArray[np.float32]
    margins: tuple[tuple[int, float], ...]


def _of_ends(near: tuple[float, float], far: tuple[float, float]) -> NDArray[np.float32]:
    """The matrix of a change that both axes have: each new end is such a sum of the old near and far end."""
    matrix = np.zeros((4, 4), np.float32)
    for axis in (0, 1):
        matrix[[axis, axis + 2], axis], matrix[[axis, axis + 2], axis + 2] = near, far
    return matrix


# From so many files on no resample of right sets is better by the margin (VOC, COCO and scenes, 300 of each size): of
# twenty right ones the best is .00, for boxes of half their size, of ten .04 (and one in 2,000 more than .05).
_USUAL = ((10, 0.05), (5, 0.1))
BOX_CHANGES = (
    BoxChange(
        "each at twice its size", "see whether widths and heights were halved",
        _of_ends((1.5, -0.5), (-0.5, 1.5)), ((20, 0.03), (10, 0.05)),
    ),
    BoxChange(
        "each at half its size", "see whether widths and heights were doubled",
        _of_ends((0.75, 0.25), (0.25, 0.75)), ((20, 0.07), (10, 0.1)),
    ),
    BoxChange(
        "with all numbers doubled", "boxes may be of images of half the size", _of_ends((2, 0), (0, 2)), _USUAL
    ),
    BoxChange(
        "with all numbers halved", "boxes may be of images of twice the size", _of_ends((0.5, 0), (0, 0.5)), _USUAL
    ),
    BoxChange(
        "moved by half their size to the right and down",
        "corners may have been made of centres that were corners already", _of_ends((0.5, 0.5), (-0.5, 1.5)), _USUAL,
    ),
    BoxChange(
        "moved by half their size to the left and up", "their first numbers may be centres, not corners",
        _of_ends((1.5, -0.5), (0.5, 0.5)), _USUAL,
    ),
)  # fmt: skip
"""How all boxes of a set may have been changed."""
_FOLLOW = 0.75  # mean level of boxes that follow: of VOC .84, COCO .86, of other photographs .63 to .66
# Neighbouring pixels of noise have nothing in common, and of it every border is an edge: of 250 photographs of VOC,
# ADE20K and COCO at this size the least correlation was .79.
_LEAST_CORRELATION = 0.5
Borders = Literal["masks", "outlines", "boxes", "jumps"]
# How much better one file must follow in a turn, and how well, to be said to be turned by itself. Of 380 right files
# with masks or outlines (VOC, ADE20K, COCO) none is by .12, of mirrored ones 70 to 94 % are; by boxes at .2 none of
# 326 is mirrored and 3 are upside down, of mirrored ones 30 to 39 % are found.
_STRAY: Mapping[Borders, tuple[float, float]] = MappingProxyType(
    {"masks": (0.12, 0.65), "outlines": (0.12, 0.65), "boxes": (0.2, 0.7), "jumps": (0.2, 0.7)}
)
_MOST_JSON = 64 << 20  # bytes of annotations that are read once more for outlines: COCO's 5,000 have 20 MB


@dataclass(frozen=True)
class TurnLevels:
    """Sums over files for each of the eight turns: ``files`` that have it, and over these the levels.

    A level is how well labels of a file, turned, follow its photograph; ``gains`` is how much better they do as they
    are. Files whose sides differ have no turns that swap them. ``strays`` counts the files that by themselves follow
    far better in that turn, ``first_strays`` names one of each. ``each`` has the levels of all other files as they
    are, ``names`` their names. ``by``: what has the borders. Of boxes alone: how much better they follow changed as in
    :data:`BOX_CHANGES` than as they are, ``change_gains``, summed over ``change_files``.
    """

    files: tuple[int, ...] = (0,) * 8
    levels: tuple[float, ...] = (0.0,) * 8
    gains: tuple[float, ...] = (0.0,) * 8
    strays: tuple[int, ...] = (0,) * 8
    first_strays: tuple[str, ...] = ("",) * 8
    by: Borders = "masks"
    each: tuple[float, ...] = ()
    names: tuple[str, ...] = ()
    change_files: tuple[int, ...] = (0,) * len(BOX_CHANGES)
    change_gains: tuple[float, ...] = (0.0,) * len(BOX_CHANGES)

    def __add__(self, other: TurnLevels) -> TurnLevels:
        def added(mine: tuple[Any, ...], its: tuple[Any, ...]) -> tuple[Any, ...]:
            return tuple(a + b for a, b in zip(mine, its, strict=True))

        firsts = tuple(a or b for a, b in zip(self.first_strays, other.first_strays, strict=True))
        return TurnLevels(
            added(self.files, other.files), added(self.levels, other.levels), added(self.gains, other.gains),
            added(self.strays, other.strays), firsts, self.by if any(self.files) else other.by,
            self.each + other.each, self.names + other.names, added(self.change_files, other.change_files),
            added(self.change_gains, other.change_gains),
        )  # fmt: skip

    def level(self, turn: int) -> float:
        """Mean level of a turn; NaN without a file that has it."""
        return self.levels[turn - 1] / self.files[turn - 1] if self.files[turn - 1] else float("nan")

    def gain(self, turn: int) -> float:
        """Mean of how much better labels follow as they are than turned so; NaN without a file that has it."""
        return self.gains[turn - 1] / self.files[turn - 1] if self.files[turn - 1] else float("nan")

    def change_gain(self, change: int) -> float:
        """Mean of how much better boxes follow with a change of :data:`BOX_CHANGES`."""
        return self.change_gains[change] / max(self.change_files[change], 1)

    def best_change(self) -> int | None:
        """The change of :data:`BOX_CHANGES` with which boxes follow best, if by more than its margin, and well."""
        best = max(range(len(BOX_CHANGES)), key=self.change_gain)
        files = self.change_files[best]
        margin = next((margin for least, margin in BOX_CHANGES[best].margins if files >= least), None)
        if margin is None or self.change_gain(best) <= margin or self.level(1) + self.change_gain(best) < _FOLLOW:
            return None
        return best


def turn_levels(opened: Any, indices: Sequence[int]) -> TurnLevels:
    """Compare labels of these images of a split with their photographs; what cannot be read is passed over."""
    by = _borders_of_split(opened, indices)
    of_file = _LEVELS[by]
    total = TurnLevels(by=by)
    for index in indices:
        try:
            levels = of_file(opened, index)
        except DataError:
            continue  # named where it is read
        if levels is not None and np.isfinite(levels[0]):
            one = _of_one(levels[:8], opened.path(index).name, by)
            total += one if by != "boxes" else replace(one, **_of_changes(levels))
    return total


def _of_changes(levels: NDArray[np.float64]) -> dict[str, Any]:
    """The counts of one file with boxes, of whose levels (8 + changes,) the last are of :data:`BOX_CHANGES`."""
    gains = levels[8:] - levels[0]
    known = np.isfinite(gains)
    return {
        "change_files": tuple(known.astype(int).tolist()),
        "change_gains": tuple(np.where(known, gains, 0.0).tolist()),
    }


def _of_one(levels: NDArray[np.float64], name: str, by: Borders) -> TurnLevels:
    """The levels (8,) of one file, NaN for turns that it does not have."""
    known = np.isfinite(levels)
    gains = np.where(known, levels[0] - levels, 0.0)
    margin, floor = _STRAY[by]
    stray = known & (gains < -margin) & (np.where(known, levels, 0.0) >= floor)
    stray &= gains == gains.min()  # its best turn alone
    return TurnLevels(
        tuple(known.astype(int).tolist()), tuple(np.where(known, levels, 0.0).tolist()), tuple(gains.tolist()),
        tuple(stray.astype(int).tolist()), tuple(name if one else "" for one in stray.tolist()), by,
        *(((), ()) if stray.any() else ((float(levels[0]),), (name,))),
    )  # fmt: skip


def _borders_of_split(opened: Any, indices: Sequence[int]) -> Borders:
    """Outlines of objects tell more than their boxes, where a file of moderate size has them."""
    if isinstance(opened, BorderedMaps):
        return "jumps"
    if not isinstance(opened, DetectionDataset):
        return "masks"
    if not indices or not isinstance(opened, _Outlined) or not _is_moderate(opened.annotation_paths[0]):
        return "boxes"
    try:
        opened.masks(indices[0])
    except DataError:
        return "boxes"
    return "outlines"


@runtime_checkable
class _Outlined(Protocol):
    """Objects with outlines: ``masks`` are bool (H, W), upright."""

    annotation_paths: tuple[Path, ...]

    def masks(self, index: int) -> list[NDArray[np.bool_]]: ...


@runtime_checkable
class BorderedMaps(Protocol):
    """Maps of every pixel, such as depth, that have borders where their values jump.

    ``photograph`` is uint8 (H, W, 3) in the frame of its map, ``border`` bool at a size (height, width), None for a
    map that hardly has one.
    """

    def photograph(self, index: int, /) -> NDArray[np.uint8]:
        """Return image ``index``."""
        ...

    def border(self, index: int, size: tuple[int, int], /) -> NDArray[np.bool_] | None:
        """Return where the map of image ``index`` jumps."""
        ...


def _is_moderate(path: Path) -> bool:
    with guard(path, "annotation"):
        return path.stat().st_size <= _MOST_JSON


def _is_noise(small: NDArray[np.uint8]) -> bool:
    grey = small.astype(np.float64).mean(2)
    left, right = grey[:, :-1].ravel(), grey[:, 1:].ravel()
    if not left.size or left.std() == 0 or right.std() == 0:
        return True  # one colour: no edge
    return float(np.corrcoef(left, right)[0, 1]) < _LEAST_CORRELATION


def _turns_of(shape: tuple[int, ...]) -> range:
    return TURNS if shape[0] == shape[1] else TURNS[:4]


def _levels_of_masks(opened: Any, index: int) -> NDArray[np.float64] | None:
    small = small_image(read_image(opened.path(index)))
    if _is_noise(small):
        return None
    ranks = edge_ranks(small)
    labels = without_void(opened.label(index), (ranks.shape[0], ranks.shape[1]))
    border = None if labels is None else borders_of(labels)
    return None if border is None else _turned_levels(ranks, border)


def _levels_of_jumps(opened: BorderedMaps, index: int) -> NDArray[np.float64] | None:
    small = small_image(opened.photograph(index))
    if _is_noise(small):
        return None
    border = opened.border(index, (small.shape[0], small.shape[1]))
    return None if border is None else _turned_levels(edge_ranks(small), border)


def _turned_levels(ranks: NDArray[np.float32], border: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Mean rank of edges (H, W) on a border (H, W) in each turn (8,); NaN for turns that the size does not have."""
    levels = np.full(8, np.nan)
    for turn in _turns_of(ranks.shape):
        levels[turn - 1] = ranks[turn_upright(border, turn)].mean()
    return levels


def _levels_of_outlines(opened: Any, index: int) -> NDArray[np.float64] | None:
    small = small_image(read_image(opened.path(index)))
    if _is_noise(small):
        return None
    border = np.zeros(small.shape[:2], bool)
    for mask in opened.masks(index):
        labels = without_void(mask.astype(np.uint8), (small.shape[0], small.shape[1]))
        around = None if labels is None else borders_of(labels)
        if around is not None:
            border |= around
    if border.sum() < FEWEST:
        return None
    return _turned_levels(edge_ranks(small), border)


def _levels_of_boxes(opened: DetectionDataset, index: int) -> NDArray[np.float64] | None:
    image = read_image(opened.path(index))
    sides = np.array([*image.shape[1::-1]] * 2, dtype=np.float32)
    small, shares = small_image(image), (opened.boxes(index) / sides).astype(np.float32)
    if not len(shares) or _is_noise(small):
        return None
    edges, levels = BoxEdges.of(small), np.full(8 + len(BOX_CHANGES), np.nan)
    for turn in _turns_of(small.shape):
        level = edges.level(turned_shares(shares, turn))
        levels[turn - 1] = np.nan if level is None else level
    for number, change in enumerate(BOX_CHANGES):
        level = edges.level(np.clip(shares @ change.matrix, 0, 1))
        levels[8 + number] = np.nan if level is None else level
    return levels


_LEVELS: Mapping[Borders, Callable[[Any, int], NDArray[np.float64] | None]] = MappingProxyType(
    {
        "masks": _levels_of_masks,
        "outlines": _levels_of_outlines,
        "boxes": _levels_of_boxes,
        "jumps": _levels_of_jumps,
    }
)


def turned_shares(boxes: NDArray[np.float32], turn: int) -> NDArray[np.float32]:
    """Turn boxes x1 y1 x2 y2 in shares of the sides (K, 4) as the turn turns pictures."""
    x1, y1, x2, y2 = boxes.T
    if turn >= 5:
        x1, y1, x2, y2 = y1, x1, y2, x2
    if turn in {3, 4, 7, 8}:
        y1, y2 = 1 - y2, 1 - y1
    if turn in {2, 3, 6, 7}:
        x1, x2 = 1 - x2, 1 - x1
    return np.stack([x1, y1, x2, y2], axis=1)
