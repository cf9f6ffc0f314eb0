"""Images with the depth or the surface normal of every pixel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dinoskip.data.edges import FEWEST
from dinoskip.data.labelled_images import LabelledImages
from dinoskip.data.schema import violated
from dinoskip.errors import DataError
from dinoskip.io.images import (
    exif_orientation,
    image_size,
    opencv,
    read_depth,
    read_image,
    sizes_tell,
    stored_geometry,
)
from dinoskip_dense.normal_axes import axis_sums, bends

_JUMP = 0.08  # of the logarithm of depth between neighbours at 192 pixels: where one thing ends before another


@dataclass(frozen=True, eq=False)
class DepthDataset(LabelledImages):
    """Images with depth maps of 16 bits; a value divided by ``per_metre`` is the distance along the optical axis.

    Of a photograph that EXIF turns the map is of the pixels as stored, or of the photograph upright: its size says it
    where a turn swaps the sides, else ``labels_upright``; ``labels_by`` says how that is known
    (:mod:`dinoskip.data.orientation`). Both are read in the frame of the map.
    """

    of_each, files = ("depth_paths",), "depth_paths"
    depth_paths: tuple[Path, ...]
    per_metre: float = 1000.0
    _: KW_ONLY
    outdoor: bool = False  # streets, whose depths are judged as such
    labels_upright: bool = False
    labels_by: str = ""

    def read(self, index: int) -> NDArray[np.uint8]:
        """Decode image ``index`` to uint8 (H, W, 3), in the frame of its map."""
        path, upright = self.image_paths[index], False
        if exif_orientation(path) > 1:
            said = self.label_frame(index)
            upright = self.labels_upright if said is None else said == "upright"
        return read_image(path, upright=upright)

    def photograph(self, index: int) -> NDArray[np.uint8]:
        """Return image ``index`` uint8 (H, W, 3), in the frame of its map."""
        return self.read(index)

    def label_frame(self, index: int) -> Literal["upright", "stored"] | None:
        """Return which pixels a map's size says it is of, of a photograph that EXIF turns; None if it does not."""
        stored, orientation = stored_geometry(self.image_paths[index])
        if not sizes_tell(stored, orientation):
            return None
        return "stored" if image_size(self.depth_paths[index], upright=False) == stored else "upright"

    def border(self, index: int, size: tuple[int, int]) -> NDArray[np.bool_] | None:
        """Return where depth jumps in map ``index``, bool at ``size`` (height, width); None if it hardly does."""
        depth = read_depth(self.depth_paths[index])
        small = opencv().resize(depth, size[::-1], interpolation=opencv().INTER_NEAREST)
        logs = np.where(small > 0, np.log(np.maximum(small, 1).astype(np.float64)), np.nan)
        jumps = np.zeros(small.shape, bool)
        for axis in (0, 1):
            far = np.moveaxis(np.abs(np.diff(logs, axis=axis)) > _JUMP, axis, 0)  # NaN, not measured, is none
            places = np.moveaxis(jumps, axis, 0)
            places[:-1] |= far
            places[1:] |= far
        return jumps if jumps.sum() >= FEWEST else None

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
    """Images with surface normals; ``load`` reads both from a path, as :class:`LabelledNormals`.

    ``load_depth`` reads the depth float32 (H, W) of the same pixels, 0 where it was not measured, from the path of the
    normals; by it the directions of the axes are judged.
    """

    of_each, files = ("normal_paths",), "normal_paths"
    normal_paths: tuple[Path, ...]
    load: Callable[[Path, Path], LabelledNormals]
    load_depth: Callable[[Path], NDArray[np.float32]]

    @property
    def measured_items(self) -> int:
        """The number of images."""
        return len(self)

    def measured(self, index: int) -> dict[str, float]:
        """Return what image ``index`` says of the axes: :func:`dinoskip_dense.normal_axes.axis_sums`."""
        labelled, depth = self.read(index), self.load_depth(self.normal_paths[index])
        if depth.shape != labelled.valid.shape:
            raise violated(self.normal_paths[index], f"depth {depth.shape} does not fit normals {labelled.valid.shape}")
        return axis_sums(labelled.normals, labelled.valid, depth)

    def photograph(self, index: int) -> NDArray[np.uint8]:
        """Return image ``index`` uint8 (H, W, 3)."""
        return self.read(index).image

    def border(self, index: int, size: tuple[int, int]) -> NDArray[np.bool_] | None:
        """Return where normals turn in map ``index``, bool at ``size`` (height, width); None if they hardly do."""
        labelled = self.read(index)
        return bends(labelled.normals, labelled.valid, size)

    def read(self, index: int) -> LabelledNormals:
        """Read image ``index`` and its normals; :class:`DataError` naming the file if they do not belong together."""
        labelled = self.load(self.image_paths[index], self.normal_paths[index])
        shape = labelled.image.shape[:2]
        if labelled.normals.shape != (*shape, 3) or labelled.valid.shape != shape:
            raise violated(self.normal_paths[index], f"normals {labelled.normals.shape} do not fit an image of {shape}")
        return labelled
