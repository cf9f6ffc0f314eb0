"""The white value of 16-bit files: all of them hold 0..65535, but cameras fill only 10 to 14 bits of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from dinoskip.errors import ConfigError

PIXEL_RANGE, SETTING = "DINOSKIP_PIXEL_RANGE", "pixel_range"
SMALLEST, LARGEST = 256, 65_535
_DARK = 1 << 14  # of 16 bits: pictures of 14 bits and fewer have no value from here on, and come out nearly black
_STATE_RANGE = (
    f"state the largest value of files with 16 bits: {PIXEL_RANGE}=4095, or {SETTING}: 4095 of the data set, for 12 "
    "bits, 16383 for 14, 10000 for reflectances, 65535 where pictures are this dark"
)


class RangedPath(type(Path())):  # type: ignore[misc]  # PosixPath, or what paths are on this system
    """A path of images, or of a folder of them, whose files of 16 bits have the value ``white`` where they are white.

    What is joined to it has the same; all else about it is as of a path.
    """

    white: int | None = None

    @classmethod
    def of(cls, path: Path, white: int | None) -> Path:
        """The path with this value; as it is without one."""
        if white is None:
            return path
        ranged = cls(path)
        ranged.white = white
        return ranged

    def __truediv__(self, name: Any) -> Path:
        return RangedPath.of(super().__truediv__(name), self.white)

    def __reduce__(self) -> Any:
        return RangedPath.of, (Path(str(self)), self.white)


def pixel_range(of: object = None) -> int | None:
    """The value of files with 16 bits that is white, of a :class:`RangedPath` its own, else by DINOSKIP_PIXEL_RANGE.

    None if it is not stated. Raises :class:`ConfigError` unless the variable is a whole number from 256 to 65535.
    """
    if isinstance(of, RangedPath) and of.white is not None:
        return of.white
    text = os.environ.get(PIXEL_RANGE, "")
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 6 and SMALLEST <= int(text) <= LARGEST):
        raise ConfigError(f"{PIXEL_RANGE}={text!r} is not a whole number from {SMALLEST} to {LARGEST}", _STATE_RANGE)
    return int(text)


def _used(values: np.ndarray) -> int:
    """Return the largest value but for single pixels far above all others, as sensors have; 0 of no values.

    Those are at most one in a thousand, with nothing between twice the others' largest value and the half of theirs.
    Stars and lamps have such values around them.
    """
    flat = values.ravel()
    if not flat.size:
        return 0
    few = flat.size // 1000
    top = np.sort(np.partition(flat, flat.size - few - 1)[flat.size - few - 1 :])
    rest, high = int(top[0]), int(top[-1])
    lone = top[top > 2 * rest]
    return int(top[-lone.size - 1]) if lone.size and high > 4 * rest and lone[0] >= high / 2 else high


def known_range(values: np.ndarray, largest: int, stated: int | None) -> int:
    """The value that is white among those of a file with 16 bits, of which ``largest`` is the largest possible.

    It is the one that is ``stated``, if one is. Raises ValueError if none is and the picture uses less than a quarter
    of its range; zeros alone are black in every range, and saturated or dead pixels do not count (:func:`_used`).
    """
    if stated is not None:
        return stated
    high = _used(values)
    if 0 < high < _DARK * (largest + 1) // (1 << 16):
        bits = f"{high.bit_length()} bits in {(largest + 1).bit_length() - 1}"
        raise ValueError(f"its values end at {high} of {largest}, as those of {bits} do; {_STATE_RANGE}")
    return largest


def zero_is_white(image: Any) -> bool:
    """Whether an open TIFF says that its 0 is white, as X-rays and scans do; Pillow heeds it up to 8 bits alone."""
    return image.format == "TIFF" and getattr(image, "tag_v2", {}).get(262) == 0
