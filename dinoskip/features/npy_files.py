"""The files of a feature store: laid out once at their full size, written and mapped in place, verified when read.

A file is compared with its recorded sha256, and looked through for infinite and NaN values, once per process, in one
pass at about the speed of sha256; ``DINOSKIP_VERIFY=0``, or ``FeatureStore.open(..., verify=False)``, leaves it out.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dinoskip.errors import ConfigError, DataError, translate_write_errors

Arrays = Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]  # name -> dtype and shape
_CHUNK = 4 * 2**20  # bytes: stays in the cache between hashing and looking at it
# Bits of the exponent, all of them set in inf and NaN alone; uint16 is how NumPy holds bfloat16.
_EXPONENT: dict[str, tuple[np.dtype[Any], int]] = {
    "<f2": (np.dtype("<u2"), 0x7C00),
    "<u2": (np.dtype("<u2"), 0x7F80),
    "<f4": (np.dtype("<u4"), 0x7F800000),
}


@dataclass(frozen=True)
class ArrayLocation:
    """An array in a file: its dtype, shape, and the byte at which its rows begin."""

    path: Path
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int

    @property
    def row_bytes(self) -> int:
        """Bytes of one entry along the first axis."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    def map(self) -> NDArray[Any]:
        """Map the array from its file, for reading only."""
        return np.memmap(self.path, self.dtype, "r", self.start, self.shape)


def create_files(folder: Path, arrays: Arrays) -> None:
    """Make the files of all ``arrays``, whose space is reserved, and whose rows are to be written in place."""
    with translate_write_errors(folder):
        for name, (dtype, shape) in arrays.items():
            with open(folder / f"{name}.npy", "wb+") as stream:
                header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(stream, header)
                os.posix_fallocate(stream.fileno(), 0, stream.tell() + math.prod(shape) * dtype.itemsize)


def locate_array(folder: Path, name: str) -> ArrayLocation:
    """Return where ``name`` lies; :class:`DataError` if its file is missing or not of this format."""
    path = folder / f"{name}.npy"
    try:
        if path.exists() and not path.is_file():
            raise ValueError("not a regular file")
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        if not array.flags.c_contiguous:
            raise ValueError("its rows are not stored one after another (Fortran order)")
        return ArrayLocation(path, array.dtype, array.shape, array.offset)
    except FileNotFoundError:
        raise DataError(f"{path}: missing from this feature store") from None
    except Exception as error:  # NumPy's reader raises nearly anything on a file that is not its own
        raise DataError(f"{path}: not a readable array: {' '.join(str(error).split())}") from error


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
