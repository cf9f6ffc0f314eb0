"""The only image decoder: EXIF orientation, colour modes, 16-bit depth, size bombs and damage, decided once.

Images come back as uint8 (H, W, 3) RGB arrays, masks as uint8 (H, W) label arrays, both upright. Pillow decides what
an image is; ordinary JPEGs take a shorter way through the same libjpeg-turbo to the same pixels, in two thirds of the
time or less.
"""

from __future__ import annotations

import io
import os
import re
import struct
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

import numpy as np
from PIL import Image, ImageOps, TiffImagePlugin, UnidentifiedImageError, features

from dinoskip.errors import ConfigError, DataError, guard
from dinoskip.io.files import open_regular, read_regular
from dinoskip.io.pixel_range import PIXEL_RANGE, SETTING, known_range, pixel_range, zero_is_white

# Builds of Pillow for some systems come without these two libraries.
_AVIF, _JPEG_2000 = bool(features.check("avif")), bool(features.check("jpg_2000"))
# By content, whatever the name says. Others are not asked: Pillow hands EPS and WMF to programs of the system.
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP", "DIB", "JPEG2000", *(("AVIF",) if _AVIF else ()))
EXTENSIONS = frozenset(
    {
        ".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".dib", ".gif", ".tif", ".tiff", ".ppm", ".pgm",
        ".pbm", ".pnm",
        *((".jp2", ".j2k", ".jpx", ".jpf", ".j2c", ".jpc") if _JPEG_2000 else ()),
        *((".avif", ".avifs") if _AVIF else ()),
    }
)  # fmt: skip
"""Extensions of all files that are decoded, in lower case: by them files are listed as images."""
LOSSY = frozenset({"JPEG", "JPEG2000", "AVIF"})  # formats whose pixels are near those that were stored; WebP may be
MAX_BYTES = 1 << 30  # of an encoded image
PILLOWS_LIMIT = 178  # million pixels; beyond it Pillow itself refuses
ORIENTATION = 0x0112  # the EXIF tag


def max_pixels() -> int:
    """The most pixels (width × height) an image may have: DINOSKIP_MAX_MEGAPIXELS million, by default 64.

    It is checked by the header, before memory is taken. Raises :class:`ConfigError` if it is not a positive number.
    """
    return _pixels(os.environ.get("DINOSKIP_MAX_MEGAPIXELS", "64"))


@lru_cache(maxsize=4)
def _pixels(text: str) -> int:
    try:
        millions = float(text)
    except ValueError:
        millions = 0.0
    if not 0 < millions <= PILLOWS_LIMIT:
        raise ConfigError(
            f"DINOSKIP_MAX_MEGAPIXELS={text!r} is not a number of million pixels up to {PILLOWS_LIMIT}",
            "for example DINOSKIP_MAX_MEGAPIXELS=150",
        )
    return int(millions * 1e6)


@contextmanager
def _opened(stream: IO[bytes], name: Path | str) -> Iterator[Image.Image]:
    """Open an image by its header; :class:`DataError` if it is none or too large. What fails later is named too."""
    with guard(name, "image"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns about odd metadata on the way and of sizes that we refuse
        try:
            opened = Image.open(stream, formats=FORMATS)
        except UnidentifiedImageError:
            if bands := _bands_of_tiff(stream):
                raise ValueError(bands) from None
            raise
        with opened as image:
            if image.width * image.height > max_pixels():
                raise DataError(
                    f"{name}: {image.width}×{image.height} pixels is more than {max_pixels():,} allowed",
                    "DINOSKIP_MAX_MEGAPIXELS sets another bound",
                )
            yield image


_PNG = b"\x89PNG\r\n\x1a\n"


def _check_png(content: bytes, name: Path | str) -> bytes:
    """Return the bytes of a picture; :class:`DataError` for a PNG chunk that is cut short or has another checksum.

    Pillow does not look at those of pixels: a damaged mask would be another mask.
    """
    at, kind = len(_PNG) if content.startswith(_PNG) else len(content), b""
    while at < len(content) and kind != b"IEND":
        kind, end = content[at + 4 : at + 8], at + 8 + int.from_bytes(content[at : at + 4])
        if zlib.crc32(content[at + 4 : end]).to_bytes(4) != content[end : end + 4]:
            raise DataError(f"{name}: not a readable image: damaged: a PNG chunk is cut short or has another checksum")
        at = end + 4
    return content


_SIXTEEN_BITS = frozenset({"PNG", "PPM"})  # whose mode I, of 32 bits in memory, holds 0..65535


def _rgb(
    image: Image.Image, file_format: str | None, *, bits: int = 8, stated: int | None = None, inverted: bool = False
) -> Image.Image:
    """RGB in 8 bits; what range a file's values have is decided by its mode and format, or ``stated``.

    ``bits`` of a channel are stored: 16 bits are 0..65535 (``inverted``: 0 is white), 12 bits 0..4095, floats 0..1.
    Raises ValueError for 32-bit integers, whose range nothing says, floats outside 0..1, and as :func:`known_range`.
    """
    if image.mode.startswith("I;16") or (image.mode == "I" and file_format in _SIXTEEN_BITS):
        values = np.asarray(image).astype(np.float64)
        values *= 255 / known_range(values, (1 << 12) - 1 if bits == 12 else (1 << 16) - 1, stated)
        values = 255 - values if inverted else values
    elif image.mode == "F":
        values = 255 * np.asarray(image).astype(np.float64)
        if not (values.min(initial=0.0) >= 0 and values.max(initial=0.0) <= 255):
            raise ValueError("an image of floats must have values in 0..1; save it with 8 or 16 bits")
    elif image.mode == "I":
        raise ValueError("an image of signed or 32-bit integers has no known range; save it with 8 or unsigned 16 bits")
    else:
        colours = image.convert("RGB")
        if bits == 16:  # of which Pillow keeps the upper half
            known_range(np.asarray(colours).astype(np.int64) * 257, (1 << 16) - 1, stated)
        return colours
    return Image.fromarray(np.clip(np.rint(values, out=values), 0, 255, out=values).astype(np.uint8)).convert("RGB")


def _stored_bits(image: Image.Image) -> int:
    """The bits of a channel of a picture that is open and not yet decoded: 12, 16, or 8 for all others."""
    stored = " ".join(str(tile[-1]) for tile in getattr(image, "tile", ()))
    return 12 if "I;12" in stored else 16 if ";16" in stored else 8


def _refuse_bands(image: Image.Image) -> None:
    """Raise ValueError for a TIFF of several pages of one channel and of one size: bands, or slices."""
    if image.format != "TIFF" or (image.mode not in {"L", "F", "I"} and not image.mode.startswith("I;16")):
        return
    size, mode = image.size, image.mode
    try:
        pages = int(getattr(image, "n_frames", 1))
        image.seek(min(1, pages - 1))
        reduced = bool(int(getattr(image, "tag_v2", {}).get(254, 0)) & 1)  # a preview of the page before
        alike = pages > 1 and not reduced and (image.size, image.mode) == (size, mode)
    except (EOFError, OSError, SyntaxError, TypeError, ValueError):
        alike = False  # what comes after the first page is damaged, and not read
    image.seek(0)
    if alike:
        raise ValueError(f"it has {pages} pages of one channel each; {_SAVE_THREE}")


_SAVE_THREE = "which are red, green and blue is not said: save three bands as an RGB image, or one as a grey one"


def _bands_of_tiff(stream: IO[bytes]) -> str:
    """Say of a TIFF that Pillow cannot read how many bands of how many bits it has; "" if it says none."""
    stream.seek(0)
    header = stream.read(8)
    if header[:4] not in {b"II*\0", b"MM\0*"}:
        return ""
    directory = TiffImagePlugin.ImageFileDirectory_v2(header)
    try:
        stream.seek(directory.next)
        directory.load(stream)
        bands, bits = int(directory.get(277, 1)), directory.get(258, (1,))
    except (OSError, SyntaxError, TypeError, ValueError, struct.error):
        return ""
    each = bits[0] if isinstance(bits, tuple) and bits else bits
    return f"a TIFF of {bands} bands of {each} bits; {_SAVE_THREE}" if bands > 1 else ""


def rgb_array(image: Image.Image, *, upright: bool = True, name: object = None) -> np.ndarray:
    """The pixels of a picture that Pillow has open, as :func:`image_from_bytes` returns them: uint8 (H, W, 3).

    ``name`` is its path, which may state its range. Raises ValueError for values without a known range and for bands
    without known colours, see there.
    """
    file_format, bits, inverted = image.format, _stored_bits(image), zero_is_white(image)  # gone in copies
    _refuse_bands(image)
    turned = ImageOps.exif_transpose(image) if upright else image
    return np.array(_rgb(turned, file_format, bits=bits, stated=pixel_range(name), inverted=inverted))


def _in_stated_range(content: bytes, image: Image.Image, stated: int | None) -> np.ndarray | None:
    """Pixels of a colour image of 16 bits in the stated range, not turned; None where none is stated or it is no such.

    Pillow keeps 8 bits of such files.
    """
    if stated is None or _stored_bits(image) != 16 or image.mode not in {"RGB", "RGBA", "RGBX", "LA"}:
        return None
    cv2 = opencv()
    # IMREAD_COLOR_RGB gives blue first of a TIFF of 16 bits
    flags = cv2.IMREAD_ANYDEPTH | cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
    values = cv2.imdecode(np.frombuffer(content, np.uint8), flags)
    if values is None or values.dtype != np.uint16:
        raise ValueError(
            f"its 16 bits cannot be read in a stated range; leave {PIXEL_RANGE} and {SETTING} out, or save it otherwise"
        )
    scaled: np.ndarray = np.clip(np.rint(values[..., ::-1] * (255 / stated)), 0, 255)
    return scaled.astype(np.uint8)


def opencv() -> Any:
    """Return the module cv2, imported where it is first needed."""
    import cv2  # heavy; few images need it

    return cv2


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
        return not (ordinary and 0 < height * width <= max_pixels())
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
    cv2 = opencv()
    try:
        pixels: np.ndarray | None = cv2.imdecode(
            np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION
        )
    except cv2.error:
        return None
    return pixels


def image_from_bytes(content: bytes, name: str | Path, *, upright: bool = True) -> np.ndarray:
    """Decode the bytes of one image to uint8 (H, W, 3) RGB; ``name`` is for messages.

    ``upright`` turns it as its EXIF orientation says; without, pixels stay as they are stored. 16-bit images are scaled
    to 8 bits from 0..65535, or from 0 to :func:`pixel_range` if one is stated (values beyond are white), floats from
    0..1, transparency is dropped, grey and palette images become RGB. Raises :class:`DataError` with the name if it is
    damaged, truncated, of floats outside 0..1, of 32-bit integers, of 16 bits of which 14 are used and no range is
    stated, or of bands that nothing gives a colour, or has more than :func:`max_pixels`.
    """
    pixels = _plain(content)
    if pixels is not None:
        return pixels
    with _opened(io.BytesIO(_check_png(content, name)), name) as image:
        stored = _in_stated_range(content, image, pixel_range(name))
        if stored is None:
            return rgb_array(image, upright=upright, name=name)
        return turn_upright(stored, _orientation(image)) if upright else stored


@dataclass(frozen=True)
class StoredPixels:
    """Pixels as a file stores them: (H, W) grey values or palette indices, or (H, W, C) channels, of its own dtype.

    ``lossy``: whether its format only approximates pixels.
    """

    pixels: np.ndarray
    lossy: bool


def picture_from_bytes(content: bytes, name: str | Path) -> np.ndarray:
    """Decode a picture of a page of ours, uint8 (H, W, 4) with opacity; raises as :func:`image_from_bytes`."""
    with _opened(io.BytesIO(content), name) as image:
        return np.asarray(image.convert("RGBA"))


def stored_pixels(content: bytes, name: str | Path) -> StoredPixels:
    """Decode the bytes of an image without conversion of mode, range or orientation; the first frame of several.

    Bilevel images become 0 and 255 in uint8. Raises :class:`DataError` as :func:`image_from_bytes` for damage and
    size.
    """
    with _opened(io.BytesIO(content), name) as image:
        lossy = image.format in LOSSY
        return StoredPixels(np.array(image.convert("L") if image.mode == "1" else image), lossy)


def read_image(path: str | Path, *, upright: bool = True) -> np.ndarray:
    """Decode an image file to uint8 (H, W, 3) RGB, see :func:`image_from_bytes`; a missing one is a DataError too."""
    return image_from_bytes(read_encoded(path), path, upright=upright)


def grey_thumbnail(content: bytes, name: str | Path, side: int) -> np.ndarray:
    """Decode the bytes of an image to uint8 (``side``, ``side``) grey, upright and squashed to a square.

    JPEGs are decoded at an eighth or more of their size: pixels are near those of :func:`image_from_bytes`, made
    smaller. Raises :class:`DataError` as that does.
    """
    with _opened(io.BytesIO(_check_png(content, name)), name) as image:
        if image.format == "JPEG":
            image.draft("L", (2 * side, 2 * side))
        if image.mode in {"L", "RGB", "YCbCr", "CMYK"}:
            grey = ImageOps.exif_transpose(image).convert("L")
        else:
            grey = Image.fromarray(rgb_array(image, name=name)).convert("L")
        return np.asarray(grey.resize((side, side), Image.Resampling.BILINEAR, reducing_gap=3.0))


def read_encoded(path: str | Path) -> bytes:
    """Return a regular file's bytes; :class:`DataError` if it is none, is missing or longer than 1 GiB."""
    with guard(path, "image"):
        return read_regular(Path(path), MAX_BYTES)


def size_from_bytes(content: bytes, name: str | Path) -> tuple[int, int]:
    """Return (height, width) as :func:`image_from_bytes` would give them, from the header alone."""
    return _size(io.BytesIO(content), name, upright=True)


def image_size(path: str | Path, *, upright: bool = True) -> tuple[int, int]:
    """Return (height, width) as :func:`read_image` would give them, from the header alone."""
    with guard(path, "image"), open_regular(path) as stream:
        return _size(stream, path, upright=upright)


def _size(stream: IO[bytes], name: str | Path, *, upright: bool) -> tuple[int, int]:
    (height, width), orientation = _geometry(stream, name)
    return (width, height) if upright and orientation >= 5 else (height, width)


def stored_geometry(path: str | Path) -> tuple[tuple[int, int], int]:
    """Return an image's stored (height, width) and its EXIF orientation 1 to 8, from the header alone."""
    with guard(path, "image"), open_regular(path) as stream:
        return _geometry(stream, path)


def _geometry(stream: IO[bytes], name: str | Path) -> tuple[tuple[int, int], int]:
    with _opened(stream, name) as image:
        return (image.height, image.width), _orientation(image)


def _orientation(image: Image.Image) -> int:
    orientation = image.getexif().get(ORIENTATION, 1)  # of a PNG it is read to the end of the file
    return orientation if orientation in range(1, 9) else 1


def sizes_tell(size: tuple[int, int], orientation: int) -> bool:
    """Whether the sides of a label say if it is for an image as stored, of ``size``, or upright: a turn swaps them."""
    return orientation >= 5 and size[0] != size[1]


_HEADER = 1 << 12  # bytes that are read at first: headers without EXIF end in it
_TURNING_CHUNKS = (b"eXIf", b"iTXt", b"tEXt", b"zTXt")  # of a PNG: where an orientation may stand


def exif_orientation(path: str | Path) -> int:
    """Return an image's EXIF orientation, 1 to 8, by :func:`stored_geometry` where its header may have one, else 1.

    Of JPEG and PNG, which is nearly all there is, no more than segments and the heads of chunks are looked at.
    """
    with guard(path, "image"), open_regular(path) as stream:
        header = stream.read(_HEADER)
        if header.startswith(b"\xff\xd8\xff"):
            turned = _may_be_turned(header)
        elif header.startswith(_PNG):
            turned = _has_texts(stream)
        else:
            turned = not header.startswith((b"BM", b"GIF8", b"P5", b"P6", b"P4"))  # these have none
    return stored_geometry(path)[1] if turned else 1


def _may_be_turned(header: bytes) -> bool:
    """Whether a JPEG's first bytes hold metadata with an orientation, or end before its frame."""
    at = 2
    while at + 4 <= len(header) and header[at] == 0xFF:
        kind, length = header[at + 1], header[at + 2] << 8 | header[at + 3]
        if kind == 0xDA:
            return False
        if kind == 0xE1 and _unusual(kind, header[at + 4 : at + 2 + length]):
            return True
        at += 2 + length
    return True


def _has_texts(stream: IO[bytes]) -> bool:
    """Whether a PNG has a chunk in which an orientation may stand."""
    at = len(_PNG)
    while True:
        stream.seek(at)
        head = stream.read(8)
        if len(head) < 8 or head[4:] == b"IEND":
            return False
        if head[4:] in _TURNING_CHUNKS:
            return True
        at += 12 + int.from_bytes(head[:4])


def turn_upright(stored: np.ndarray, orientation: int) -> np.ndarray:
    """Turn what is in an image's stored pixels (H, W, ...) as its EXIF orientation turns the image."""
    if orientation >= 5:
        stored = stored.swapaxes(0, 1)
    rows, columns = orientation in {3, 4, 7, 8}, orientation in {2, 3, 6, 7}
    return np.ascontiguousarray(stored[:: -1 if rows else 1, :: -1 if columns else 1])


def _refuse_lossy(image: Image.Image, path: str | Path) -> None:
    """Raise :class:`DataError` for a mask in a format that changes values: between classes others would appear."""
    packed = str(image.info.get("compression", "")) if image.format == "TIFF" else ""
    if image.format in LOSSY or "jpeg" in packed:
        stored = f"{image.format} with JPEG in it" if packed else image.format
        raise DataError(
            f"{path}: a mask must be stored without loss, this one is {stored}: its values are not those that were "
            "drawn",
            "export it again as PNG; a copy as PNG has the wrong values, too",
        )


def read_colour_mask(path: str | Path) -> np.ndarray | None:
    """Decode a mask in colours to uint8 (H, W, 3) as stored, also by a palette; None for a mask of grey values.

    Raises :class:`DataError` for damage and for formats with loss.
    """
    with _opened(io.BytesIO(_check_png(read_encoded(path), path)), path) as image:
        _refuse_lossy(image, path)
        return np.array(image.convert("RGB")) if image.mode in {"P", "RGB", "RGBA"} else None


def read_mask(path: str | Path) -> np.ndarray:
    """Decode a label map to uint8 (H, W): palette indices or grey values, never colours. Raises :class:`DataError`."""
    with _opened(io.BytesIO(_check_png(read_encoded(path), path)), path) as image:
        _refuse_lossy(image, path)
        if image.mode not in {"P", "L", "1", "I", "I;16"}:
            raise DataError(
                f"{path}: a mask must be a palette or grey image, this one is {image.mode}",
                "masks in colours are read with a list of the classes' colours, such as labelmap.txt (docs/datasets.md)"
                if image.mode in {"RGB", "RGBA"}
                else None,
            )
        labels = np.array(image)
    if labels.size and not 0 <= int(labels.min()) <= int(labels.max()) <= 255:
        outside = int(labels.max()) if int(labels.max()) > 255 else int(labels.min())
        raise DataError(f"{path}: label value {outside} is outside 0..255")
    return labels.astype(np.uint8)


def read_depth(path: str | Path) -> np.ndarray:
    """Decode a depth map, one grey channel of 16 bits, to uint16 (H, W) as stored. Raises :class:`DataError`."""
    with _opened(io.BytesIO(_check_png(read_encoded(path), path)), path) as image:
        if image.mode not in {"I", "I;16", "I;16B"}:
            raise DataError(f"{path}: a depth map must be a grey image of 16 bits, this one is {image.mode}")
        values = np.array(image)
    if values.size and not 0 <= int(values.min()) <= int(values.max()) <= 65_535:
        raise DataError(f"{path}: depth values from {int(values.min())} to {int(values.max())} are not of 16 bits")
    return values.astype(np.uint16)
