"""Arrays to small pictures: photographs as JPEG; colours, label maps and scalar maps as PNG at token resolution."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from dinoskip.io.images import read_image

# Few levels are told apart at a token's size, and cost fewer bytes: maps of trained networks are hard to compress.
EIGEN_LEVELS = 63  # the middle one is the split
HEAT_LEVELS = 32
HEAT_QUANTILE = 0.99  # of a map's values: shown as the brightest
OUTLYING = 3.0
"""Tokens of a norm above so many medians of a block's are outliers."""
UNKNOWN_GREY = 128  # of every channel, where a map has no value
VEIL_COLOUR = (14, 18, 44)  # nearly black, so that what it veils gets darker and no more colourful
TINT = 150  # opacity of the colour over an object
VEIL = 175  # opacity (0..255) of the shade over what a mask leaves out


def png(pixels: np.ndarray) -> bytes:
    """Encode uint8 (H, W, 3) RGB as PNG."""
    return _encoded(Image.fromarray(np.ascontiguousarray(pixels)), "PNG")


def jpeg(pixels: np.ndarray) -> bytes:
    """Encode uint8 (H, W, 3) as JPEG."""
    return _encoded(Image.fromarray(np.ascontiguousarray(pixels)), "JPEG", quality=85, optimize=True)


def palette_png(values: np.ndarray, palette: np.ndarray, opacity: Sequence[int] = ()) -> bytes:
    """Encode uint8 (H, W) as a PNG of the colours ``palette`` (up to 256, 3) uint8.

    ``opacity`` (0..255) is that of the first colours; the others are opaque.
    """
    image = Image.fromarray(np.ascontiguousarray(values))
    image.putpalette(np.ascontiguousarray(palette, np.uint8).tobytes())
    more = {"transparency": bytes(opacity)} if len(opacity) else {}
    return _encoded(image, "PNG", **more)


def _encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def sheet(rows: Sequence[Sequence[np.ndarray]]) -> np.ndarray:
    """Lay maps (h, w, ...) out as a grid without gaps; all take the size of the first, by nearest neighbour."""
    size = rows[0][0].shape[:2]
    fitted = [[picture if picture.shape[:2] == size else nearest(picture, size) for picture in row] for row in rows]
    return np.concatenate([np.concatenate(row, axis=1) for row in fitted], axis=0)


def fit(height: int, width: int, longest: int) -> tuple[int, int]:
    """(height, width) scaled down so that the longer side is at most ``longest``; never up, never below 1."""
    scale = min(1.0, longest / max(height, width))
    return max(1, round(height * scale)), max(1, round(width * scale))


def photo(path: Path, longest: int) -> tuple[np.ndarray, tuple[int, int]]:
    """Return the image uint8 (h, w, 3) with its longer side at most ``longest`` pixels, and its own (height, width)."""
    pixels = read_image(path)
    height, width = pixels.shape[:2]
    small = fit(height, width, longest)
    if small != (height, width):
        # Pillow: from 3 on the result can hardly be told from that of one slow step.
        resized = Image.fromarray(pixels).resize(small[::-1], Image.Resampling.LANCZOS, reducing_gap=3.0)
        pixels = np.asarray(resized)
    return pixels, (height, width)


def nearest(values: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Nearest-neighbour resize of (H, W, ...) to ``size`` (height, width), sampled at pixel centres."""
    rows = ((np.arange(size[0]) + 0.5) * values.shape[0] / size[0]).astype(np.intp)
    columns = ((np.arange(size[1]) + 0.5) * values.shape[1] / size[1]).astype(np.intp)
    return np.asarray(values[rows[:, None], columns])


def fewer_levels(pixels: np.ndarray) -> np.ndarray:
    """uint8 colours at 32 levels a channel, at most 4 of 255 off."""
    return (pixels & 0xF8) | 4


def eigenvector_levels(vector: np.ndarray) -> np.ndarray:
    """An eigenvector (h, w) about its mean, TokenCut's split, as uint8 levels of ``palette.diverging(EIGEN_LEVELS)``.

    The half ranges are scaled by the larger distance of the 2 and 98 % quantiles from the mean, so that equal
    distances from the split look equally strong. What is not finite is drawn as the split.
    """
    values = vector.astype(np.float64)
    middle = float(np.nanmean(np.where(np.isfinite(values), values, np.nan))) if np.isfinite(values).any() else 0.0
    values = np.nan_to_num(values, nan=middle, posinf=middle, neginf=middle)
    low, high = np.quantile(values, (0.02, 0.98))  # as PCA's channels: no single token sets the scale
    reach = max(middle - low, high - middle, 1e-12)  # a constant vector has no reach: all is the split
    half = EIGEN_LEVELS // 2
    return np.asarray(np.rint(half + half * np.clip((values - middle) / reach, -1.0, 1.0)), np.uint8)


def heat_levels(values: np.ndarray) -> np.ndarray:
    """A map (h, w) of values from 0 to its 99 % quantile as uint8 levels of ``palette.sequential(HEAT_LEVELS)``."""
    top = max(float(np.quantile(values, HEAT_QUANTILE)), 1e-12)  # of a map of zeros
    return np.rint(np.clip(values / top, 0.0, 1.0) * (HEAT_LEVELS - 1)).astype(np.uint8)
