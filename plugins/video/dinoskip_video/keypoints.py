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
    object's box there, or of the image. ``visible`` bool (n,) says which points count.
    """

    id: str
    category: str
    source: int
    target: int
    source_points: NDArray[np.float64]
    target_points: NDArray[np.float64]
    extent: float
    visible: NDArray[np.bool_]


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

    def path(self, index: int) -> Path:
        """Return the path of image ``index``."""
        return self.image_paths[index]

    def size(self, index: int) -> tuple[int, int]:
        """(height, width) of image ``index``, from its header."""
        return image_size(self.image_paths[index])


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
