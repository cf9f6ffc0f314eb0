"""Verify the files of a feature store when they are first read: recorded sha256, and no infinite or NaN value.

Once per process and file, in one pass at about the speed of sha256. ``DINOSKIP_VERIFY=0`` in the environment, or
``FeatureStore.open(..., verify=False)``, leaves it out.
"""

from __future__ import annotations

import hashlib
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from dinoskip.errors import ConfigError
from dinoskip.features.file_formats import ArrayLocation

_CHUNK = 4 * 2**20  # bytes: stays in the cache between hashing and looking at it
# Bits of the exponent, all of them set in inf and NaN alone; uint16 is how NumPy holds bfloat16.
_EXPONENT: dict[str, tuple[np.dtype[Any], int]] = {
    "<f2": (np.dtype("<u2"), 0x7C00),
    "<u2": (np.dtype("<u2"), 0x7F80),
    "<f4": (np.dtype("<u4"), 0x7F800000),
}


def verification_wanted() -> bool:
    """What ``DINOSKIP_VERIFY`` says, 1 where it is not set; :class:`ConfigError` unless it is 0 or 1."""
    text = os.environ.get("DINOSKIP_VERIFY", "1")
    if text not in ("0", "1"):
        raise ConfigError(f"DINOSKIP_VERIFY={text!r} is neither 0 nor 1")
    return text == "1"


def has_recorded_hash(path: Path, sha256: str) -> bool:
    """Whether a file's content has this hash; computed once per process, as long as the file stays as it is."""
    state = path.stat()
    return _sha256(path, state.st_ino, state.st_size, state.st_mtime_ns) == sha256


@lru_cache(maxsize=4096)
def _sha256(path: Path, inode: int, size: int, modified: int) -> str:
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def first_not_finite(location: ArrayLocation) -> int | None:
    """First row of an array in which a value is infinite or NaN, None if there is none; looked for once per process."""
    state = location.path.stat()
    return _not_finite(location, state.st_ino, state.st_size, state.st_mtime_ns)


@lru_cache(maxsize=4096)
def _not_finite(location: ArrayLocation, inode: int, size: int, modified: int) -> int | None:
    kind, exponent = _EXPONENT[location.dtype.str]
    bits: Any = np.memmap(location.path, kind, "r", location.start, location.shape).reshape(-1)
    step = _CHUNK // kind.itemsize
    buffer, mask = np.empty(step, kind), kind.type(exponent)
    for begin in range(0, len(bits), step):
        part = bits[begin : begin + step]
        masked = np.bitwise_and(part, mask, out=buffer[: len(part)])
        if masked.max() == mask:
            value = begin + int((masked == mask).argmax())
            return value * location.shape[0] // len(bits)
    return None
