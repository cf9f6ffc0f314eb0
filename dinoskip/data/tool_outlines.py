"""Outlines that labelling tools draw and COCO's format has no form for: holes, pictures of a region, runs in a box.

Each checks what it is given before memory is taken for it, and gives the mask of a whole image.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dinoskip.data.outlines import OutlineError, Size, mask_of_outline
from dinoskip.data.schema import SLACK
from dinoskip.errors import DataError
from dinoskip.io.images import size_from_bytes, stored_pixels

MAX_PICTURE = 16 << 20  # bytes of a region's picture, unpacked; PNGs of masks of 64 megapixels have less
Bounds = tuple[float, float, float, float]
"""x, y, width, height in pixels."""


@dataclass(frozen=True)
class Holed:
    """A polygon with holes: x y of their points, one after the other, as COCO has them."""

    outer: list[float]
    holes: tuple[list[float], ...]

    def mask(self, size: Size, bbox: Bounds) -> NDArray[np.bool_]:
        """Return the mask bool (H, W) of an image of ``size``; errors as :func:`mask_of_outline`."""
        mask = mask_of_outline([self.outer], size, bbox)
        for hole in self.holes:
            mask = mask & ~mask_of_outline([hole], size, bbox)
        if not mask.any():
            raise OutlineError("empty", "its holes leave no pixel")
        return mask


@dataclass(frozen=True)
class Picture:
    """A region as a picture whose pixels above 0 are its own, and where its left upper corner lies, x y."""

    encoded: bytes
    corner: tuple[int, int]

    @property
    def bounds(self) -> Bounds:
        """The box of the picture, from its corner and its header; :class:`DataError` if it is not a picture."""
        height, width = size_from_bytes(self.encoded, "the picture of an object")
        return (*self.corner, width, height)

    def mask(self, size: Size, bbox: Bounds) -> NDArray[np.bool_]:
        """Return the mask bool (H, W) of an image of ``size``; :class:`OutlineError` if it does not lie in it."""
        x, y, width, height = (int(value) for value in self.bounds)
        _check_inside((x, y, width, height), size)
        pixels = stored_pixels(self.encoded, "the picture of an object").pixels
        region = pixels[..., -1] if pixels.ndim == 3 else pixels  # Supervisely's have the region in the last channel
        return _placed(region > 0, (x, y), size)


@dataclass(frozen=True)
class BoxRuns:
    """A region in a box, x y width height in whole pixels, as runs row by row, background first."""

    runs: tuple[int, ...]
    box: tuple[int, int, int, int]

    def mask(self, size: Size, bbox: Bounds) -> NDArray[np.bool_]:
        """Return the mask bool (H, W) of an image of ``size``; :class:`OutlineError` for runs that are not its box's.

        CVAT leaves out the last run where it is background.
        """
        x, y, width, height = self.box
        _check_inside(self.box, size)
        left = width * height - sum(self.runs)
        if min(self.runs, default=0) < 0 or left < 0:
            raise OutlineError("counts", f"runs cover {sum(self.runs)} pixels of {width * height}")
        colours = np.arange(len(self.runs) + 1) % 2 == 1
        colours[-1] = False
        region = np.repeat(colours, np.asarray([*self.runs, left], dtype=np.int64)).reshape(height, width)
        return _placed(region, (x, y), size)


ToolOutline = Holed | Picture | BoxRuns


def _check_inside(box: tuple[int, int, int, int], size: Size) -> None:
    x, y, width, height = box
    if min(x, y) < -SLACK or min(width, height) < 1 or x + width > size[1] + SLACK or y + height > size[0] + SLACK:
        raise OutlineError("outside", f"{list(box)} lies outside the image of {size[1]}×{size[0]} pixels")


def _placed(region: NDArray[np.bool_], corner: tuple[int, int], size: Size) -> NDArray[np.bool_]:
    """A region in an image of ``size``; what lies beyond the image by rounding is cut off."""
    x, y = corner
    mask = np.zeros(size, dtype=bool)
    region = region[max(0, -y) :, max(0, -x) :][: size[0] - max(0, y), : size[1] - max(0, x)]
    mask[max(0, y) : max(0, y) + region.shape[0], max(0, x) : max(0, x) + region.shape[1]] = region
    if not mask.any():
        raise OutlineError("empty", "it holds no pixel")
    return mask


def unpacked_picture(text: Any) -> bytes:
    """Return the bytes of a region's picture, a zlib stream in base64; ValueError for another or one too large."""
    if not isinstance(text, str) or len(text) > 2 * MAX_PICTURE:
        raise ValueError("the data of a bitmap are no text, or too long")
    stream = zlib.decompressobj()
    content = stream.decompress(base64.b64decode(text, validate=True), MAX_PICTURE)
    if not stream.eof:
        raise ValueError(f"the data of a bitmap are cut short or unpack to more than {MAX_PICTURE:,} bytes")
    return content


def bounds_of_points(points: Sequence[float]) -> Bounds:
    """Return the box around points, x y one after the other."""
    xs, ys = points[::2], points[1::2]
    return min(xs), min(ys), max(xs) - min(xs), max(ys) - min(ys)


def tool_mask(outline: Any, size: Size, bbox: Bounds) -> NDArray[np.bool_]:
    """Return the mask bool (H, W) of an outline of a tool or of COCO's format; :class:`OutlineError` for a bad one."""
    if not isinstance(outline, ToolOutline):
        return mask_of_outline(outline, size, bbox)
    try:
        return outline.mask(size, bbox)
    except DataError as error:
        raise OutlineError("malformed", error.message) from None
