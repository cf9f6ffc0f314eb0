"""Images with the depth or the surface normal of every pixel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dinoskip.data.labelled_images import LabelledImages
from dinoskip.data.schema import violated
from dinoskip.errors import DataError
from dinoskip.io.images import read_depth, read_image


@dataclass(frozen=True, eq=False)
class DepthDataset(LabelledImages):
    """Images with depth maps of 16 bits; a value divided by ``per_metre`` is the distance along the optical axis.

    Images are not turned by EXIF: what is measured belongs to the pixels as they are stored.
    """

    of_each, files = ("depth_paths",), "depth_paths"
    depth_paths: tuple[Path, ...]
    per_metre: float = 1000.0

    def read(self, index: int) -> NDArray[np.uint8]:
        """Decode image ``index`` to uint8 (H, W, 3)."""
        return read_image(self.image_paths[index], upright=False)

    def depth(self, index: int) -> NDArray[np.float32]:
        """Return the depth of image ``index`` in metres, float32 (H, W); 0 where it was not measured.

        Raises :class:`DataError` naming the map if it is damaged or of another size than its image.
        """
        metres = read_depth(self.depth_paths[index]).astype(np.float32) / np.float32(self.per_metre)
        expected = self.read(index).shape[:2]
        if metres.shape != expected:
            height, width = metres.shape
            raise DataError(
                f"{self.depth_paths[index]}: depth map is {width}×{height} pixels, its image "
                f"{self.image_paths[index].name} {expected[1]}×{expected[0]}"
            )
        return metres


@dataclass(frozen=True, eq=False)
class LabelledNormals:
    """An image uint8 (H, W, 3), its unit ``normals`` float32 (H, W, 3), and where they are known, bool (H, W)."""

    image: NDArray[np.uint8]
    normals: NDArray[np.float32]
    valid: NDArray[np.bool_]

    @property
    def masked(self) -> NDArray[np.float32]:
        """The normals, 0 where they are not known."""
        return self.normals * self.valid[..., None]


@dataclass(frozen=True, eq=False)
class NormalsDataset(LabelledImages):
    """Images with surface normals; ``load`` reads both from a path, as :class:`LabelledNormals`."""

    of_each, files = ("normal_paths",), "normal_paths"
    normal_paths: tuple[Path, ...]
    load: Callable[[Path, Path], LabelledNormals]

    def read(self, index: int) -> LabelledNormals:
        """Read image ``index`` and its normals; :class:`DataError` naming the file if they do not belong together."""
        labelled = self.load(self.image_paths[index], self.normal_paths[index])
        shape = labelled.image.shape[:2]
        if labelled.normals.shape != (*shape, 3) or labelled.valid.shape != shape:
            raise violated(self.normal_paths[index], f"normals {labelled.normals.shape} do not fit an image of {shape}")
        return labelled
