"""The files of a feature store: laid out once at their full size, written and mapped in place, verified when read.

A file is compared with its recorded sha256, and looked through for infinite and NaN values, once per process, in one
pass at about the speed of sha256, several files at a time; ``DINOSKIP_VERIFY=0``, or
``FeatureStore.open(..., verify=False)``, leaves it out.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dinoskip.errors import ConfigError, DataError, translate_write_errors
from dinoskip.io.arrays import map_array
from dinoskip.io.files import open_regular
from dinoskip.runtime.cores import available_cores

Arrays = Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]  # name -> dtype and shape
_CHUNK = 2**20  # bytes: stays in a core's cache between hashing and looking at it
_THREADS = 8  # that lay out files
VERIFIED_TOGETHER = min(8, available_cores())
"""Files that are verified at once: hashlib and NumPy let other threads run meanwhile."""
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

    def create(name: str) -> None:
        dtype, shape = arrays[name]
        with open(folder / f"{name}.npy", "wb+") as stream:
            header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(stream, header)
            os.posix_fallocate(stream.fileno(), 0, stream.tell() + math.prod(shape) * dtype.itemsize)

    with translate_write_errors(folder), ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(create, arrays))  # a file system in memory fills what it reserves


def locate_array(folder: Path, name: str) -> ArrayLocation:
    """Return where ``name`` lies; :class:`DataError` if its file is missing or not of this format."""
    path = folder / f"{name}.npy"
    try:
        array = map_array(path)
        if not array.flags.c_contiguous:
            raise ValueError("its rows are not stored one after another (Fortran order)")
        return ArrayLocation(path, array.dtype, array.shape, array.offset)
    except DataError:
        raise
    except FileNotFoundError:
        raise DataError(f"{path}: missing from this feature store") from None
    except Exception as error:  # NumPy's reader raises nearly anything on a file that is not its own
        raise DataError(f"{path}: not a readable array: {' '.join(str(error).split())}") from error


def verification_wanted() -> bool:
    """Return whether ``DINOSKIP_VERIFY`` is 1, its default. Raises :class:`ConfigError` unless it is 0 or 1."""
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
    with open_regular(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@dataclass(frozen=True)
class FileContent:
    """The sha256 of an array's file, and its first row in which a value is infinite or NaN, None if there is none."""

    sha256: str
    not_finite: int | None


def contents(locations: Sequence[ArrayLocation]) -> list[FileContent]:
    """Read through the files of arrays, some at a time by threads; each once a process, while it stays as it is."""
    with ThreadPoolExecutor(max(1, min(VERIFIED_TOGETHER, len(locations)))) as pool:
        return list(pool.map(_content_of, locations))


def _content_of(location: ArrayLocation) -> FileContent:
    state = location.path.stat()
    return _read_through(location, state.st_ino, state.st_size, state.st_mtime_ns)


@lru_cache(maxsize=4096)
def _read_through(location: ArrayLocation, inode: int, size: int, modified: int) -> FileContent:
    kind, exponent = _EXPONENT[location.dtype.str]
    mask, masked = kind.type(exponent), np.empty(_CHUNK // kind.itemsize, kind)
    row_values = max(1, location.row_bytes // kind.itemsize)
    first: int | None = None
    begin = 0  # values before the chunk
    with open_regular(location.path) as stream:
        digest = hashlib.sha256(stream.read(location.start))
        buffer = bytearray(_CHUNK)
        while length := stream.readinto(buffer):
            digest.update(memoryview(buffer)[:length])
            values = np.frombuffer(buffer, kind, length // kind.itemsize)
            found = np.bitwise_and(values, mask, out=masked[: len(values)])
            if first is None and len(found) and found.max() == mask:
                first = (begin + int((found == mask).argmax())) // row_values
            begin += len(values)
    return FileContent(digest.hexdigest(), first)
