"""The white value of 16-bit files: all of them hold 0..65535, but cameras fill only 10 to 14 bits of it."""

from __future__ import annotations

import os

import numpy as np

from dinoskip.errors import ConfigError

PIXEL_RANGE = "DINOSKIP_PIXEL_RANGE"
_DARK = 1 << 14  # of 16 bits: pictures of 14 bits and fewer have no value from here on, and come out nearly black
_STATE_RANGE = (
    f"state the largest value of files with 16 bits: {PIXEL_RANGE}=4095 for 12 bits, 16383 for 14, 10000 for "
    "reflectances, 65535 where pictures are this dark"
)


def pixel_range() -> int | None:
    """The value of files with 16 bits that is white, by DINOSKIP_PIXEL_RANGE; None if it is not stated.

    Raises :class:`ConfigError` unless it is a whole number from 256 to 65535.
    """
    text = os.environ.get(PIXEL_RANGE, "")
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 6 and 256 <= int(text) <= 65_535):
        raise ConfigError(f"{PIXEL_RANGE}={text!r} is not a whole number from 256 to 65535", _STATE_RANGE)
    return int(text)


def known_range(values: np.ndarray, largest: int) -> int:
    """The value that is white among those of a file with 16 bits, of which ``largest`` is the largest possible.

    Raises ValueError if no range is stated and a picture that is not of one value uses less than a quarter of it.
    """
    if stated := pixel_range():
        return stated
    low, high = (int(values.min()), int(values.max())) if values.size else (0, 0)
    if low != high and high < _DARK * (largest + 1) // (1 << 16):
        bits = f"{high.bit_length()} bits in {(largest + 1).bit_length() - 1}"
        raise ValueError(f"its values end at {high} of {largest}, as those of {bits} do; {_STATE_RANGE}")
    return largest
