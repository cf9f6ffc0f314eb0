"""Files of arrays that lie: refused in one line, in little memory."""

from __future__ import annotations

import io
import os
import resource
import zipfile
from pathlib import Path

import numpy as np
import pytest

from dinoskip.errors import DataError
from dinoskip.io.arrays import read_arrays


def bomb(path: Path, shape: tuple[int, ...], size: int) -> None:
    """Arrays image, depth and normals of ``shape`` in a header, and ``size`` zeros, which deflate to a thousandth."""
    path.parent.mkdir(parents=True, exist_ok=True)
    header = io.BytesIO()
    np.lib.format.write_array_header_2_0(header, {"descr": "|u1", "fortran_order": False, "shape": shape})
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("image", "depth", "normals"):
            with archive.open(f"{name}.npy", "w") as stream:
                stream.write(header.getvalue())
                for _ in range(size >> 20):
                    stream.write(bytes(1 << 20))


def test_arrays_are_read_as_they_were_saved(tmp_path: Path) -> None:
    saved = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array(["x", "yz"]), "c": np.array(3)}
    np.savez_compressed(tmp_path / "x.npz", **saved)
    for names in ((), ("a",), ("c", "b")):
        read = read_arrays(tmp_path / "x.npz", *names)
        assert tuple(read) == (names or tuple(saved))
        for name, values in read.items():
            np.testing.assert_array_equal(values, saved[name])
    with pytest.raises(DataError, match=r"x\.npz: holds no array 'd'"):
        read_arrays(tmp_path / "x.npz", "d")


def test_bombs_are_refused_before_memory_is_taken(tmp_path: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    path = tmp_path / "test" / "a.npz"
    for shape, size, text in (
        ((1 << 45,), 1 << 20, "bytes follow"),
        ((100 << 10, 1 << 10), 100 << 20, "more than 268,435,456"),
    ):
        bomb(path, shape, size)
        with pytest.raises(DataError, match=text) as caught:
            read_arrays(path, "image", "depth", "normals", limit=1 << 28)
        assert str(path) in str(caught.value)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 150_000, "KiB"


@pytest.mark.parametrize("kind", ["objects", "no zip", "no array", "fifo"])
def test_what_is_no_file_of_arrays(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x.npz"
    if kind == "objects":
        np.savez(path, a=np.array([{}], dtype=object))
    elif kind == "no zip":
        path.write_bytes(b"PK\x03\x04" + bytes(90))
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a.npy", b"text")
    with pytest.raises(DataError, match=r"x\.npz"):
        read_arrays(path)
