"""Sets of image pairs with keypoints: where the same points of an object lie in both images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dinoskip.data.schema import inside, real_numbers, violated
from dinoskip.io.images import image_size


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


def checked_points(points: Any, size: tuple[int, int], where: str) -> NDArray[np.float64]:
    """Return points (n, 2), n > 0; :class:`DataError` saying ``where`` unless all lie in an image of ``size``."""
    if not isinstance(points, list) or any(not isinstance(point, list) or len(point) != 2 for point in points):
        raise violated(where, "keypoints are not pairs of numbers")
    if not points:
        raise violated(where, "there are no keypoints")
    table = np.array([real_numbers(point, "keypoints", where) for point in points])
    inside(table, size, "keypoints", where)
    return table
