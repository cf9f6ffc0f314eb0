"""Arrays to small PNGs: PCA colours, label maps, eigenvectors and masks at token resolution, photos as JPEG."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from dinoskip.data.voc import IGNORE
from dinoskip.errors import translate_write_errors
from dinoskip.images import read_image
from visualize.palette import diverging_rgb

_VEIL_COLOUR = (14, 18, 44)
_VEIL = 175  # opacity (0..255) of the shade over what a mask leaves out


def save_png(path: Path, pixels: np.ndarray) -> None:
    """Write uint8 (H, W, 3) RGB or (H, W, 4) RGBA as PNG."""
    _save(path, Image.fromarray(np.ascontiguousarray(pixels)), "PNG", optimize=True)


def save_jpeg(path: Path, pixels: np.ndarray, quality: int = 85) -> None:
    """Write uint8 (H, W, 3) as JPEG."""
    _save(path, Image.fromarray(np.ascontiguousarray(pixels)), "JPEG", quality=quality, optimize=True)


def save_labels(path: Path, labels: np.ndarray, palette: np.ndarray) -> None:
    """Write a label map uint8 (H, W) as a palette PNG in the data set's colours ``palette`` (256, 3) uint8."""
    image = Image.fromarray(np.ascontiguousarray(labels))
    image.putpalette(np.ascontiguousarray(palette, np.uint8).tobytes())
    _save(path, image, "PNG", optimize=True)


def _save(path: Path, image: Image.Image, kind: str, **options: object) -> None:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    with translate_write_errors(path):  # no fsync each: there are thousands, and the page is written after them
        path.write_bytes(stream.getvalue())


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
        resized = Image.fromarray(pixels).resize(small[::-1], Image.Resampling.LANCZOS, reducing_gap=3.0)
        pixels = np.asarray(resized)
    return pixels, (height, width)


def nearest(values: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Nearest-neighbour resize of (H, W, ...) to ``size`` (height, width), sampled at pixel centres."""
    rows = ((np.arange(size[0]) + 0.5) * values.shape[0] / size[0]).astype(np.intp)
    columns = ((np.arange(size[1]) + 0.5) * values.shape[1] / size[1]).astype(np.intp)
    return np.asarray(values[rows[:, None], columns])


def pixel_accuracy(prediction: np.ndarray, label: np.ndarray) -> float | None:
    """Percent of labelled pixels of ``label`` (H, W) that ``prediction`` (any size) gets right; None without any."""
    known = label != IGNORE
    if not known.any():
        return None
    return float(100.0 * (nearest(prediction, label.shape[:2])[known] == label[known]).mean())


def eigenvector_pixels(vector: np.ndarray) -> np.ndarray:
    """Colour an eigenvector (h, w) about its mean, TokenCut's split: uint8 (h, w, 3), orange above, blue below."""
    values = vector.astype(np.float64)
    return diverging_rgb(values, float(np.nanmean(values)))


def mask_pixels(mask: np.ndarray) -> np.ndarray:
    """A dark veil over what ``mask`` (h, w) bool leaves out: uint8 RGBA (h, w, 4)."""
    veil = np.empty((*mask.shape, 4), np.uint8)
    veil[..., :3] = _VEIL_COLOUR
    veil[..., 3] = np.where(mask, 0, _VEIL)
    return veil


def best_iou(box: Sequence[float], truth: np.ndarray) -> float | None:
    """Largest IoU of a box (x1, y1, x2, y2, end exclusive) with any of ``truth`` (K, 4); None if there is none."""
    if len(truth) == 0:
        return None
    own, others = np.asarray(box, np.float64), np.asarray(truth, np.float64).reshape(-1, 4)
    inner = np.minimum(own[2:], others[:, 2:]) - np.maximum(own[:2], others[:, :2])
    overlap = np.prod(np.maximum(inner, 0.0), axis=1)
    areas = np.prod(others[:, 2:] - others[:, :2], axis=1) + np.prod(own[2:] - own[:2])
    return float((overlap / np.maximum(areas - overlap, 1e-12)).max())
