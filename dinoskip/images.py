"""The only image decoder: EXIF orientation, colour modes, 16-bit depth, size bombs and damage, decided once.

Images come back as uint8 (H, W, 3) RGB arrays, masks as uint8 (H, W) label arrays, both upright.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from dinoskip.errors import DataError

EXTENSIONS = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".ppm", ".pgm"})
MAX_PIXELS = 178_956_970  # Pillow's bomb limit; we refuse at it, Pillow only at twice it


@contextmanager
def _quiet() -> Iterator[None]:
    """Pillow warns about odd metadata on the way; either the image decodes or it is refused with a reason."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _reason(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__


def _open(path: Path) -> Image.Image:
    try:
        image = Image.open(path)
    except FileNotFoundError:
        raise DataError(f"{path}: no such image") from None
    except Exception as error:  # on damaged headers Pillow's readers raise OSError, SyntaxError, struct.error, ...
        raise DataError(f"{path}: not a readable image: {_reason(error)}") from error
    if image.width * image.height > MAX_PIXELS:
        image.close()
        raise DataError(f"{path}: {image.width}×{image.height} pixels is more than {MAX_PIXELS} allowed")
    return image


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I") or image.mode == "F":
        values = np.asarray(image).astype(np.float64)
        if values.max(initial=0.0) > 255:  # 16-bit: convert("RGB") would clip to white
            values = values / 257.0
        image = Image.fromarray(np.clip(np.rint(values), 0, 255).astype(np.uint8))
    return image.convert("RGB")


def read_image(path: str | Path) -> np.ndarray:
    """Decode one image to uint8 (H, W, 3) RGB, upright.

    16-bit images are scaled to 8 bits (not clipped), transparency is dropped, grey and palette images become
    RGB. Raises :class:`DataError` naming the file if it is missing, damaged, truncated or far too large.
    """
    path = Path(path)
    try:
        with _quiet(), _open(path) as image:
            return np.array(_rgb(ImageOps.exif_transpose(image)))
    except (DataError, MemoryError):
        raise
    except Exception as error:  # decoding is lazy: damage shows here, as any of many exceptions
        raise DataError(f"{path}: damaged or truncated image: {_reason(error)}") from error


def read_mask(path: str | Path) -> np.ndarray:
    """Decode a label map to uint8 (H, W): palette indices or grey values, never colours. Raises :class:`DataError`."""
    path = Path(path)
    try:
        with _quiet(), _open(path) as image:
            if image.mode not in {"P", "L", "1", "I", "I;16"}:
                raise DataError(f"{path}: a mask must be a palette or grey image, this one is {image.mode}")
            labels = np.array(image)
    except (DataError, MemoryError):
        raise
    except Exception as error:
        raise DataError(f"{path}: damaged or truncated mask: {_reason(error)}") from error
    if labels.size and int(labels.max()) > 255:
        raise DataError(f"{path}: label value {int(labels.max())} is outside 0..255")
    return labels.astype(np.uint8)


def image_size(path: str | Path) -> tuple[int, int]:
    """Return (height, width) as :func:`read_image` would give them, from the header alone."""
    path = Path(path)
    try:
        with _quiet(), _open(path) as image:
            swapped = image.getexif().get(0x0112, 1) in {5, 6, 7, 8}  # of a PNG this reads to the end of the file
            return (image.width, image.height) if swapped else (image.height, image.width)
    except (DataError, MemoryError):
        raise
    except Exception as error:
        raise DataError(f"{path}: damaged or truncated image: {_reason(error)}") from error
