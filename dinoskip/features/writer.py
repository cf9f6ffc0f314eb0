"""Write a FeatureStore so that it can be stopped anywhere: preallocated files, a journal of batches, one rename.

While it grows it is ``.partial-NAME`` beside its place: ``state.json`` (what is being exported), ``journal``
(one byte a batch, 1 = on disk), ``store/`` (the files to be). Rows are written with pwrite into allocated
space, not through a memory map: a full disk is then an error and not a SIGBUS.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dinoskip.errors import translate_write_errors
from dinoskip.files import canonical_json, publish_directory, read_json, write_json, write_manifest, write_text

FLUSH_SECONDS = 5.0  # at most so much work is lost to a kill


def partial_path(out: Path) -> Path:
    """Return the working directory of an export to ``out``: beside it and the same every time, so it resumes."""
    return out.parent / f".partial-{out.name}"


def _allocate(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    with translate_write_errors(path), open(path, "wb") as stream:
        header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(stream, header)
        size = stream.tell() + int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        stream.flush()
        os.posix_fallocate(stream.fileno(), 0, size)


class StoreWriter:
    """Rows of several arrays, written batch by batch in any order.

    Parameters
    ----------
    work
        The working directory, locked by the caller.
    plan
        JSON-able description of the export and its batches; work of another plan is discarded.
    arrays
        File name -> (dtype, shape).
    batches
        How many batches there are.
    """

    def __init__(
        self,
        work: Path,
        plan: Mapping[str, Any],
        arrays: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]],
        batches: int,
    ) -> None:
        self.work, self.store = work, work / "store"
        self.resumed = self._matches(plan, arrays, batches)
        if not self.resumed:
            self._prepare(plan, arrays, batches)
        self._files: dict[str, tuple[int, int, int]] = {}
        with translate_write_errors(work):
            self._journal = os.open(work / "journal", os.O_RDWR)
            self.done = bytearray(os.pread(self._journal, batches, 0))
            for name, (dtype, shape) in arrays.items():
                row = int(np.prod(shape[1:], dtype=np.int64)) * dtype.itemsize
                start = (self.store / name).stat().st_size - row * shape[0]
                self._files[name] = (os.open(self.store / name, os.O_RDWR), start, row)
        self._waiting: list[int] = []
        self._flushed = time.monotonic()

    def _matches(self, plan: Mapping[str, Any], arrays: Mapping[str, Any], batches: int) -> bool:
        with suppress(Exception):  # whatever is wrong with what lies there, the answer is to begin again
            if read_json(self.work / "state.json") != plan or (self.work / "journal").stat().st_size != batches:
                return False
            for name, (dtype, shape) in arrays.items():
                found = np.load(self.store / name, mmap_mode="r", allow_pickle=False)
                if found.shape != shape or found.dtype != dtype:
                    return False
            return True
        return False

    def _prepare(self, plan: Mapping[str, Any], arrays: Mapping[str, Any], batches: int) -> None:
        with translate_write_errors(self.work):
            (self.work / "state.json").unlink(missing_ok=True)
            shutil.rmtree(self.store, ignore_errors=True)
            self.store.mkdir(parents=True)
            for name, (dtype, shape) in arrays.items():
                _allocate(self.store / name, dtype, shape)
            (self.work / "journal").write_bytes(bytes(batches))
        write_json(self.work / "state.json", plan)  # last: without it, all the above is begun again

    def write(self, name: str, row: int, values: NDArray[Any]) -> None:
        """Write ``values`` (of the stored dtype) over rows ``row`` and following of an array."""
        handle, start, stride = self._files[name]
        view = memoryview(np.ascontiguousarray(values).data).cast("B")
        position = start + row * stride
        with translate_write_errors(self.store / name):
            while view:
                written = os.pwrite(handle, view, position)
                view, position = view[written:], position + written

    def finish(self, batch: int) -> None:
        """Say that all rows of ``batch`` are written; they count as done after the next flush."""
        self._waiting.append(batch)
        if time.monotonic() - self._flushed >= FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Bring rows to disk, then the journal: a batch is never marked before its rows are safe."""
        with translate_write_errors(self.store):
            for handle, _, _ in self._files.values():
                os.fsync(handle)
            for batch in self._waiting:
                self.done[batch] = 1
                os.pwrite(self._journal, b"\1", batch)
            os.fsync(self._journal)
        self._waiting, self._flushed = [], time.monotonic()

    def close(self) -> None:
        """Close all files; what was flushed stays for the next attempt."""
        for handle, _, _ in self._files.values():
            os.close(handle)
        os.close(self._journal)

    def publish(self, out: Path, manifest: Mapping[str, Any]) -> None:
        """Write the manifests, rename the store to ``out`` and remove the working directory."""
        write_text(self.store / "manifest.json", canonical_json(manifest) + "\n")
        write_manifest(self.store, {"kind": "features", "key": manifest["key"]})
        publish_directory(self.store, out)
        discard(self.work)


def discard(work: Path) -> None:
    """Remove a working directory, all but its lock (the holder removes that)."""
    for path in work.iterdir() if work.is_dir() else ():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name != ".lock":
            path.unlink(missing_ok=True)
