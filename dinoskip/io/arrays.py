"""Arrays out of .npz files that others may have made: what they declare is bounded before memory is taken."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dinoskip.errors import DataError, guard
from dinoskip.io.files import atomic_path, open_regular

_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def map_array(path: Path) -> np.memmap[Any, Any]:
    """An ``.npy`` file as a memory map that is only read; :class:`DataError` for what is no regular file.

    Raises whatever NumPy raises for a file that is not of its format, and :class:`FileNotFoundError`.
    """
    open_regular(path).close()
    array: np.memmap[Any, Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    return array


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write an .npz of arrays of numbers; it is whole or not there."""
    with atomic_path(path) as temporary, open(temporary, "wb") as stream:
        np.savez(stream, allow_pickle=False, **arrays)


def read_arrays(path: Path, *names: str, limit: int = 2 << 30) -> dict[str, NDArray[Any]]:
    """Read arrays of an .npz by name, all of them without ``names``; nothing in it is unpickled.

    Raises :class:`DataError` naming the file if it is damaged, lacks one of them, or if the headers of what is read
    declare more than ``limit`` bytes or other sizes than the file has.
    """
    with guard(path, "file of arrays"), open_regular(path) as stream, zipfile.ZipFile(stream) as archive:
        members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
        if missing := [name for name in names if name not in members]:
            raise DataError(f"{path}: holds no array {missing[0]!r}")
        wanted = {name: members[name] for name in names or members}
        total = sum(_declared(archive, member, path) for member in wanted.values())
        if total > limit:
            raise DataError(f"{path}: refused: its arrays have {total:,} bytes, more than {limit:,}")
        arrays: dict[str, NDArray[Any]] = {}
        for name, member in wanted.items():
            with archive.open(member) as content:
                arrays[name] = np.lib.format.read_array(content, allow_pickle=False)
        return arrays


def _declared(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path) -> int:
    """Bytes of an array as its header gives them; they are all that follows it."""
    with archive.open(member) as content:
        shape, _, dtype = _HEADERS[np.lib.format.read_magic(content)](content)
        size, follows = math.prod(shape) * dtype.itemsize, member.file_size - content.tell()
    if dtype.hasobject or size != follows:
        raise DataError(f"{path}: refused: {member.filename} is {dtype} {shape}, but {follows:,} bytes follow")
    return size
