"""The only image decoder: EXIF orientation, colour modes, 16-bit depth, size bombs and damage, decided once.

Images come back as uint8 (H, W, 3) RGB arrays, masks as uint8 (H, W) label arrays, both upright. Pillow decides what
an image is; ordinary JPEGs take a shorter way through the same libjpeg-turbo to the same pixels, in two thirds of the
time or less.
"""

from __future__ import annotations

import io
import re
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


def _open(path: Path | str, content: bytes | None = None) -> Image.Image:
    try:
        image = Image.open(path if content is None else io.BytesIO(content))
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


_IN_SCAN = {0x00, 0xFF, *range(0xD0, 0xD8)}  # after 0xFF: an escaped 0xFF, filling, restarts

# An EXIF orientation entry that is not the neutral one: tag 0x0112 of any type, in either byte order.
_TURNED = re.compile(
    rb"\x01\x12(?!\0\x03\0\0\0\x01\0\x01)\0[\x01-\x0d]|\x12\x01(?!\x03\0\x01\0\0\0\x01\0)[\x01-\x0d]\0", re.DOTALL
)


def _unusual(kind: int, segment: bytes) -> bool:
    """Whether a header segment of a JPEG asks for more than plain decoding."""
    if kind in {0xC0, 0xC1, 0xC2}:  # baseline, extended, progressive
        height, width = segment[1] << 8 | segment[2], segment[3] << 8 | segment[4]
        ordinary = segment[0] == 8 and tuple(segment[6::3]) in {(1,), (1, 2, 3), (0, 1, 2)}
        return not (ordinary and 0 < height * width <= MAX_PIXELS)
    if kind == 0xE1:  # EXIF, XMP
        return b"rientation" in segment or _TURNED.search(segment) is not None
    if kind == 0xE2:  # several pictures
        return segment.startswith(b"MPF")
    if kind == 0xEE:  # other colours than YCbCr
        return segment.startswith(b"Adobe") and segment[11:12] != b"\x01"
    return 0xC0 <= kind <= 0xCF and kind not in {0xC4, 0xCC}  # lossless, hierarchical, arithmetic


def _whole_scan(scan: bytes, *, progressive: bool) -> bool:
    """Whether the coded part of a JPEG holds no markers but those that belong there, and the end of image last."""
    values = np.frombuffer(scan, np.uint8)
    markers = values[1:][values[:-1] == 0xFF]
    allowed = _IN_SCAN | ({0xC4, 0xDA, 0xDB, 0xDD} if progressive else set())
    return {*np.unique(markers[:-1]).tolist()} <= allowed


def is_plain_jpeg(content: bytes) -> bool:
    """Whether these are the bytes of a JPEG whose pixels need no thought.

    That is: baseline or progressive, 8 bits, grey or YCbCr, one frame, upright by all its metadata, not too large, not
    cut short, and without stray markers, which decoders take differently.
    """
    if content[:3] != b"\xff\xd8\xff" or content[-2:] != b"\xff\xd9":
        return False
    at, frames = 2, b""
    while at + 4 <= len(content) and content[at] == 0xFF:
        kind, length = content[at + 1], content[at + 2] << 8 | content[at + 3]
        if kind == 0xDA:  # the scan: the header is over
            return len(frames) == 1 and _whole_scan(content[at + 2 :], progressive=frames == b"\xc2")
        segment = content[at + 4 : at + 2 + length]
        if kind in {0xC0, 0xC1, 0xC2}:
            frames += bytes([kind])
            if length < 8:
                return False
        if _unusual(kind, segment):
            return False
        at += 2 + length
    return False


def _plain(content: bytes) -> np.ndarray | None:
    """Decode an ordinary JPEG; None for all else, and for damage, which Pillow is to judge."""
    if not is_plain_jpeg(content):
        return None
    import cv2

    try:
        pixels: np.ndarray | None = cv2.imdecode(
            np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION
        )
    except cv2.error:
        return None
    return pixels


def image_from_bytes(content: bytes, name: str | Path) -> np.ndarray:
    """Decode the bytes of one image to uint8 (H, W, 3) RGB, upright; ``name`` is for messages.

    16-bit images are scaled to 8 bits (not clipped), transparency is dropped, grey and palette images become
    RGB. Raises :class:`DataError` with the name if it is damaged, truncated or far too large.
    """
    pixels = _plain(content)
    if pixels is not None:
        return pixels
    try:
        with _quiet(), _open(name, content) as image:
            return np.array(_rgb(ImageOps.exif_transpose(image)))
    except (DataError, MemoryError):
        raise
    except Exception as error:  # decoding is lazy: damage shows here, as any of many exceptions
        raise DataError(f"{name}: damaged or truncated image: {_reason(error)}") from error


def read_image(path: str | Path) -> np.ndarray:
    """Decode an image file to uint8 (H, W, 3) RGB, see :func:`image_from_bytes`; a missing one is a DataError too."""
    return image_from_bytes(read_encoded(path), path)


def read_encoded(path: str | Path) -> bytes:
    """Return a file's bytes; :class:`DataError` if it is missing or cannot be read."""
    try:
        with open(path, "rb", buffering=0) as stream:
            return stream.readall()
    except FileNotFoundError:
        raise DataError(f"{path}: no such image") from None
    except OSError as error:
        raise DataError(f"{path}: not a readable image: {error.strerror}") from error


def size_from_bytes(content: bytes, name: str | Path) -> tuple[int, int]:
    """Return (height, width) as :func:`image_from_bytes` would give them, from the header alone."""
    return _size(name, content)


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
    return _size(path)


def _size(path: str | Path, content: bytes | None = None) -> tuple[int, int]:
    try:
        with _quiet(), _open(path, content) as image:
            swapped = image.getexif().get(0x0112, 1) in {5, 6, 7, 8}  # of a PNG this reads to the end of the file
            return (image.width, image.height) if swapped else (image.height, image.width)
    except (DataError, MemoryError):
        raise
    except Exception as error:
        raise DataError(f"{path}: damaged or truncated image: {_reason(error)}") from error
