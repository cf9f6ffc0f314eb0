"""Images with the depth or the surface normal of every pixel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dinoskip.data.schema import violated
from dinoskip.errors import DataError
from dinoskip.images import read_depth, read_image


@dataclass(frozen=True, eq=False)
class DepthDataset:
    """Images with depth maps of 16 bits; a value divided by ``per_metre`` is the distance along the optical axis.

    Images are not turned by EXIF: what is measured belongs to the pixels as they are stored.
    """

    name: str
    split: str
    ids: tuple[str, ...]
    image_paths: tuple[Path, ...]
    depth_paths: tuple[Path, ...]
    per_metre: float = 1000.0
    class_names: tuple[str, ...] = ()
    left_out: int = 0  # of the split, as broken

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def target_files(self) -> tuple[Path, ...]:
        """The files that hold what images are measured against."""
        return self.depth_paths

    def part(self, chosen: Sequence[int]) -> DepthDataset:
        """The images at these positions."""
        return replace(
            self,
            ids=tuple(self.ids[i] for i in chosen),
            image_paths=tuple(self.image_paths[i] for i in chosen),
            depth_paths=tuple(self.depth_paths[i] for i in chosen),
        )

    def path(self, index: int) -> Path:
        """Where image ``index`` lies."""
        return self.image_paths[index]

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


@dataclass(frozen=True, eq=False)
class NormalsDataset:
    """Images with surface normals; ``load`` reads both from a path, as :class:`LabelledNormals`."""

    name: str
    split: str
    ids: tuple[str, ...]
    image_paths: tuple[Path, ...]
    normal_paths: tuple[Path, ...]
    load: Callable[[Path, Path], LabelledNormals]
    class_names: tuple[str, ...] = ()
    left_out: int = 0  # of the split, as broken

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def target_files(self) -> tuple[Path, ...]:
        """The files that hold what images are measured against."""
        return self.normal_paths

    def part(self, chosen: Sequence[int]) -> NormalsDataset:
        """The images at these positions."""
        return replace(
            self,
            ids=tuple(self.ids[i] for i in chosen),
            image_paths=tuple(self.image_paths[i] for i in chosen),
            normal_paths=tuple(self.normal_paths[i] for i in chosen),
        )

    def path(self, index: int) -> Path:
        """Where image ``index`` lies, or the file that holds it with its normals."""
        return self.image_paths[index]

    def read(self, index: int) -> LabelledNormals:
        """Read image ``index`` and its normals; :class:`DataError` naming the file if they do not belong together."""
        one = self.load(self.image_paths[index], self.normal_paths[index])
        shape = one.image.shape[:2]
        if one.normals.shape != (*shape, 3) or one.valid.shape != shape:
            raise violated(self.normal_paths[index], f"normals {one.normals.shape} do not fit an image of {shape}")
        return one
