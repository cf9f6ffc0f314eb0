"""Sets of image pairs with keypoints: where the same points of an object lie in both images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dinoskip.data.detection import frame_of, frame_said
from dinoskip.data.orientation import SETTING, Setting
from dinoskip.data.schema import inside, noted_in, real_numbers, violated
from dinoskip.errors import DataError
from dinoskip.io.images import exif_orientation, image_size


@dataclass(frozen=True, eq=False)
class KeypointPair:
    """Two images, by their numbers in the set, and points (n, 2) x y in pixels of each, the same order in both.

    ``extent``: what the threshold of a hit is a share of, in pixels of the target image: the longer side of the
    object's box there, or of the image. ``visible`` bool (n,) says which points count. ``box``: that of the object in
    the target image, x1 y1 x2 y2 in pixels, where the annotation has one.
    """

    id: str
    category: str
    source: int
    target: int
    source_points: NDArray[np.float64]
    target_points: NDArray[np.float64]
    extent: float
    visible: NDArray[np.bool_]
    box: NDArray[np.float64] | None = None


@dataclass(frozen=True, eq=False)
class KeypointDataset:
    """Pairs of a split. As a set of images it is that of all images that occur in a pair."""

    name: str
    split: str
    ids: tuple[str, ...]
    image_paths: tuple[Path, ...]
    pairs: tuple[KeypointPair, ...]
    annotation_files: tuple[Path, ...]
    left_out: int = 0  # pairs of the split, as broken
    labels_upright: bool = True  # points of images that EXIF turns, where a stated size does not say it
    labels_by: str = ""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Categories of the pairs, in alphabetical order."""
        return tuple(sorted({pair.category for pair in self.pairs}))

    @property
    def target_files(self) -> tuple[Path, ...]:
        """The files that hold the points."""
        return self.annotation_files

    def part(self, positions: Sequence[int]) -> KeypointDataset:
        """Return the pairs at these positions, with the images and annotations of all."""
        return replace(self, pairs=tuple(self.pairs[i] for i in positions))

    @property
    def measured_items(self) -> int:
        """The number of pairs."""
        return len(self.pairs)

    def measured(self, index: int) -> dict[str, float]:
        """Return the sums of pair ``index``, as :func:`point_sums` names it."""
        return point_sums(self.pairs[index])

    def path(self, index: int) -> Path:
        """Return the path of image ``index``."""
        return self.image_paths[index]

    def size(self, index: int) -> tuple[int, int]:
        """(height, width) of image ``index``, from its header."""
        return image_size(self.image_paths[index])


_FEWEST = 5  # points of a pair from which on their order says something: a map of three fits any three
_BEYOND = 0.1  # of the sides of the box: points on the rim of an object may lie a little outside


def point_sums(pair: KeypointPair) -> dict[str, float]:
    """Return what one pair adds to sums.

    ``points`` counts those of both images, ``first`` those in the first pixel, ``copied`` pairs with the same three or
    more points in both images. Of ``boxed`` points of target images ``inside`` lie in the object's box or a tenth of
    its sides around it. Of ``fitted`` pairs with five points or more, ``explained`` sums how much of the places in the
    target image the best affine map from the source explains: 1 all, 0 no more than chance.
    """
    source, target = pair.source_points, pair.target_points
    both = np.concatenate([source, target])
    same = pair.source != pair.target and len(source) >= 3 and np.array_equal(source, target)
    found = {"points": float(len(both)), "first": float((both <= 1).all(1).sum()), "copied": float(same)}
    if pair.box is not None:
        low, high = pair.box[:2], pair.box[2:]
        room = _BEYOND * (high - low)
        found["boxed"] = float(len(target))
        found["inside"] = float(((target >= low - room) & (target <= high + room)).all(1).sum())
    if len(source) >= _FEWEST and np.ptp(target, axis=0).max() > 0:
        known = np.column_stack([source, np.ones(len(source))])
        spread = ((target - target.mean(0)) ** 2).sum()
        left = ((target - known @ np.linalg.lstsq(known, target, rcond=None)[0]) ** 2).sum()
        found["fitted"] = 1.0  # adjusted by the degrees of freedom: a random order has 0 on average
        found["explained"] = float(1 - left / spread * (len(source) - 1) / (len(source) - 3))
    return found


class KeypointFrames:
    """Frames of keypoints, in images that EXIF turns: the size stated beside the points decides, otherwise the setting.

    ``setting`` is a data set's ``label_orientation``. Nothing in a photograph shows where a keypoint should lie, so
    ``auto`` has the sizes alone to go by: :meth:`settle` refuses what they leave open.
    """

    def __init__(self, setting: Setting) -> None:
        self.setting: Setting = setting
        self.unsaid: dict[str, None] = {}
        self._known: dict[tuple[Path, object], tuple[tuple[int, int], int]] = {}

    def of(self, image: Path, stated: Any, where: str) -> tuple[tuple[int, int], int]:
        """Return the (height, width) that points are in, and the EXIF orientation by which they have yet to be turned.

        ``stated`` is the (height, width) that the annotation gives, None without one. Raises :class:`DataError` saying
        ``where`` for one that is not the image's.
        """
        key = image, repr(stated)
        if key not in self._known:
            if exif_orientation(image) > 1 and frame_said(image, stated) is None:
                self.unsaid[image.name] = None
            self._known[key] = frame_of(image, stated, where, upright=self.setting != "stored")
        return self._known[key]

    def settle(self, opened: KeypointDataset, where: object, faults: list[str] | None) -> KeypointDataset:
        """Return the split, which says how its points were taken.

        Raises :class:`DataError`, or notes in ``faults``, that nothing says how points of some images lie.
        """
        if not self.unsaid:
            return opened
        if self.setting == "auto":
            with noted_in(faults):
                raise DataError(
                    f"{where}: {len(self.unsaid)} photographs are turned by EXIF and nothing says whether their "
                    f"keypoints are, such as of {next(iter(self.unsaid))}",
                    f"set {SETTING}: upright (drawn on the photograph as it is seen) or stored (on its pixels as "
                    "stored)",
                )
        return replace(opened, labels_upright=self.setting != "stored", labels_by="set")


def upright_points(points: NDArray[np.float64], size: tuple[int, int], orientation: int) -> NDArray[np.float64]:
    """Turn points (n, 2) x y in pixels of an image (height, width) as the EXIF orientation turns the image.

    Coordinates are of the grid between pixels: 0 and the width are the image's edges.
    """
    (height, width), (x, y) = size, points.T
    if orientation >= 5:
        (x, y), (height, width) = (y, x), (width, height)
    if orientation in {2, 3, 6, 7}:
        x = width - x
    if orientation in {3, 4, 7, 8}:
        y = height - y
    return np.stack([x, y], axis=1)


def checked_points(points: Any, size: tuple[int, int], where: str) -> NDArray[np.float64]:
    """Return points (n, 2), n > 0; :class:`DataError` saying ``where`` unless all lie in an image of ``size``."""
    if not isinstance(points, list) or any(not isinstance(point, list) or len(point) != 2 for point in points):
        raise violated(where, "keypoints are not pairs of numbers")
    if not points:
        raise violated(where, "there are no keypoints")
    table = np.array([real_numbers(point, "keypoints", where) for point in points])
    inside(table, size, "keypoints", where)
    return table
