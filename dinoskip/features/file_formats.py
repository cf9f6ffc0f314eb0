"""Where the rows of a feature store lie in its files: npy, safetensors or HDF5.

Each is a header and then bare rows at a known place, so a file is laid out once, at its full size, and rows are
written and mapped in place: no format needs a second copy, more memory or another reader.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from operator import index
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dinoskip.errors import ConfigError, DataError, DinoskipError, translate_write_errors
from dinoskip.files import canonical_json

FileFormat = Literal["npy", "safetensors", "hdf5"]
Arrays = Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]  # name -> dtype and shape
HDF5_FILE = "features.h5"
_TENSOR_TYPES = {"<f2": "F16", "<f4": "F32", "<u2": "BF16", "<i8": "I64"}  # uint16 is how NumPy holds bfloat16
_MAX_HEADER = 100_000_000  # bytes: safetensors readers refuse more
_TABLES = ("ids", "grids", "image_sizes")  # entries of the manifest with a row an image: too long for HDF5 attributes


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
        return _bytes(self.dtype, self.shape[1:])

    def map(self) -> NDArray[Any]:
        """Map the array from its file, for reading only."""
        return np.memmap(self.path, self.dtype, "r", self.start, self.shape)


def file_of(kind: str, name: str) -> str:
    """Name of the file that holds the array ``name``, such as ``tokens_block3``."""
    if kind == "npy":
        return f"{name}.npy"
    return HDF5_FILE if kind == "hdf5" else f"{name.removeprefix('tokens_').removeprefix('cls_')}.safetensors"


def check_format(kind: str) -> None:
    """:class:`ConfigError` for a format that is none, or whose library is missing."""
    if kind not in _CREATE:
        raise ConfigError(f"format: {kind!r} is none of {', '.join(_CREATE)}")
    if kind == "hdf5":
        _h5py()


def create_files(
    kind: str, folder: Path, arrays: Arrays, manifest: Mapping[str, Any], starts: NDArray[Any] | None
) -> None:
    """Make the files of all ``arrays``, whose space is reserved, and whose rows are to be written in place.

    ``starts`` is the first row of each image in ragged arrays; safetensors and HDF5 files hold it as ``offsets``.
    """
    with translate_write_errors(folder):
        _CREATE[kind](folder, arrays, manifest, starts)


def _reserve(path: Path, size: int) -> None:
    with open(path, "r+b") as stream:
        os.posix_fallocate(stream.fileno(), 0, size)


def _bytes(dtype: np.dtype[Any], shape: tuple[int, ...]) -> int:
    return math.prod(shape) * dtype.itemsize


def locate_array(kind: str, folder: Path, name: str) -> ArrayLocation:
    """Return where ``name`` lies; :class:`DataError` if its file is missing or not of this format."""
    path = folder / file_of(kind, name)
    try:
        if path.exists() and not path.is_file():
            raise ValueError("not a regular file")
        place = _LOCATE[kind](path, name)
        size = path.stat().st_size
        if not 0 <= place.start <= size - _bytes(place.dtype, place.shape):
            raise ValueError(f"{name} does not fit in its {size} bytes")
        return place
    except FileNotFoundError:
        raise DataError(f"{path}: missing from this feature store") from None
    except DinoskipError:  # HDF5 without its library
        raise
    except Exception as error:  # NumPy's, JSON's and HDF5's readers raise nearly anything on a file that is not theirs
        raise DataError(f"{path}: not a readable array: {' '.join(str(error).split())}") from error


# --- npy ---------------------------------------------------------------------------------------------


def _create_npy(folder: Path, arrays: Arrays, manifest: Mapping[str, Any], starts: NDArray[Any] | None) -> None:
    for name, (dtype, shape) in arrays.items():
        path = folder / file_of("npy", name)
        with open(path, "wb") as stream:
            header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(stream, header)
            size = stream.tell() + _bytes(dtype, shape)
        _reserve(path, size)


def _locate_npy(path: Path, name: str) -> ArrayLocation:
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    if not array.flags.c_contiguous:
        raise ValueError("its rows are not stored one after another (Fortran order)")
    return ArrayLocation(path, array.dtype, array.shape, array.offset)


# --- safetensors: one file a block -------------------------------------------------------------------


def _create_safetensors(folder: Path, arrays: Arrays, manifest: Mapping[str, Any], starts: NDArray[Any] | None) -> None:
    for file in sorted({file_of("safetensors", name) for name in arrays}):
        inside = {name: what for name, what in arrays.items() if file_of("safetensors", name) == file}
        if starts is not None:  # first, as the widest type: every tensor is aligned
            inside = {"offsets": (np.dtype("<i8"), starts.shape), **inside}
        header: dict[str, Any] = {"__metadata__": {"manifest": canonical_json(manifest)}}
        at = 0
        for name, (dtype, shape) in inside.items():
            end = at + _bytes(dtype, shape)
            header[name] = {"dtype": _TENSOR_TYPES[dtype.str], "shape": list(shape), "data_offsets": [at, end]}
            at = end
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        if len(text) > _MAX_HEADER:
            raise ConfigError("format: too many images for the header of a safetensors file", "use npy or hdf5")
        path = folder / file
        with open(path, "wb") as stream:
            stream.write(len(text).to_bytes(8, "little") + text)
            stream.write(b"" if starts is None else starts.astype("<i8").tobytes())
        _reserve(path, 8 + len(text) + at)


def _locate_safetensors(path: Path, name: str) -> ArrayLocation:
    with open(path, "rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if length > _MAX_HEADER:
            raise ValueError(f"its header would be {length} bytes")
        entry = json.loads(stream.read(length))[name]
    begin = index(entry["data_offsets"][0])
    if begin < 0:
        raise ValueError(f"{name} would begin in the header")
    types = {tensor: stored for stored, tensor in _TENSOR_TYPES.items()}
    return ArrayLocation(path, np.dtype(types[entry["dtype"]]), tuple(entry["shape"]), 8 + length + begin)


# --- HDF5: one file ----------------------------------------------------------------------------------


def _h5py() -> Any:
    try:
        import h5py  # an extra
    except ImportError as error:
        raise ConfigError("format: hdf5 needs the package h5py", "pip install 'dinoskip[hdf5]'") from error
    return h5py


def _create_hdf5(folder: Path, arrays: Arrays, manifest: Mapping[str, Any], starts: NDArray[Any] | None) -> None:
    h5py = _h5py()
    path = folder / HDF5_FILE
    in_place = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    in_place.set_layout(h5py.h5d.CONTIGUOUS)
    in_place.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)  # so that its place is known
    in_place.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    in_place.set_obj_track_times(False)  # the same content is the same bytes
    with h5py.File(path, "w") as opened:
        for key, value in manifest.items():
            if key == "ids":
                opened.create_dataset(key, data=value, dtype=h5py.string_dtype())
            elif key in _TABLES:
                opened.create_dataset(key, data=np.array(value, np.int64))
            else:
                opened.attrs[key] = canonical_json(value) if isinstance(value, dict) else value
        if starts is not None:
            opened.create_dataset("offsets", data=starts.astype("<i8"))
        for name, (dtype, shape) in arrays.items():
            kind, space = h5py.h5t.py_create(dtype), h5py.h5s.create_simple(shape)
            h5py.h5d.create(opened.id, name.encode(), kind, space, in_place)
    _reserve(path, path.stat().st_size)


def _locate_hdf5(path: Path, name: str) -> ArrayLocation:
    if not path.is_file():
        raise FileNotFoundError(path)
    with _h5py().File(path, "r") as opened:
        array = opened[name]
        start = array.id.get_offset()
        if start is None:
            raise ValueError(f"{name} is not stored in one piece")
        return ArrayLocation(path, array.dtype, array.shape, start)


_CREATE = {"npy": _create_npy, "safetensors": _create_safetensors, "hdf5": _create_hdf5}
_LOCATE = {"npy": _locate_npy, "safetensors": _locate_safetensors, "hdf5": _locate_hdf5}
