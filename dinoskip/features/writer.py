"""Write a feature store so that it can be stopped anywhere: files laid out first, a journal of batches, one rename.

While it grows it is ``.partial-NAME`` beside its place: ``state.json`` (what is being exported), a ``journal-RANK`` of
each process (for a batch that is on disk, the check sum of its rows), ``store/`` (the files to be). Rows are written
with pwrite into reserved space, not through a memory map: a full disk is then an error and not a SIGBUS.
"""

from __future__ import annotations

import os
import shutil
import time
import zlib
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dinoskip.console import human_bytes
from dinoskip.errors import DiskFull, translate_write_errors
from dinoskip.features.export_plan import ExportPlan
from dinoskip.features.npy_files import ArrayLocation, create_files, locate_array
from dinoskip.features.store import DESCRIPTION
from dinoskip.files import canonical_json, publish_directory, read_json, write_json, write_manifest, write_text

FLUSH_SECONDS = 5.0  # about so much work is lost to a kill
SUM_BYTES = 4  # of a journal's entry for a batch


def partial_path(out: Path) -> Path:
    """Return the working directory of an export to ``out``: beside it and the same every time, so it resumes."""
    return out.parent / f".partial-{out.name}"


def free_bytes(path: Path) -> int:
    """Bytes that may be written below ``path``, which need not exist yet."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def prepare(work: Path, plan: ExportPlan) -> bytearray:
    """Lay out the files in ``work``, locked by the caller, unless they are there from an attempt before.

    Returns a byte a batch: 1 where its rows are on disk already, as they were written. Work of another plan is
    discarded.
    Raises :class:`DiskFull` if the features do not fit on the disk.
    """
    done = bytearray(len(plan.batches))
    if not _matches(work, plan):
        _begin(work, plan)
    places = {name: locate_array(work / "store", name) for name in plan.arrays}
    for journal in work.glob("journal-*"):
        content = journal.read_bytes()
        recorded = np.frombuffer(content[: len(content) // SUM_BYTES * SUM_BYTES], "<u4")[: len(done)]
        for batch in np.flatnonzero(recorded).tolist():
            done[batch] |= recorded[batch] == _sum_on_disk(places, plan, batch)
    return done


def _sum_of_rows(values: NDArray[np.uint8]) -> int:
    """Sum of all 8-byte words (rows, bytes), modulo 2^64: at memory speed, and any flipped bit changes it."""
    cut = values.shape[1] // 8 * 8
    words, rest = values[:, :cut].view("<u8"), values[:, cut:]
    return (int(words.sum(dtype=np.uint64)) + int(rest.sum(dtype=np.uint64))) % 2**64


def _sum_of_batch(sums: Mapping[str, int]) -> int:
    """What a journal records of a batch, never 0, of the sums of its rows in each array."""
    return zlib.crc32(canonical_json(sums).encode()) or 1


def _sum_on_disk(places: Mapping[str, ArrayLocation], plan: ExportPlan, batch: int) -> int:
    sums: dict[str, int] = {}
    for name, place in places.items():
        rows = np.memmap(place.path, np.uint8, "r", place.start, (place.shape[0], place.row_bytes))
        starts = None if plan.starts is None or name not in plan.strides else plan.starts[plan.strides[name]]
        parts = [rows[i : i + 1] if starts is None else rows[starts[i] : starts[i + 1]] for i in plan.batches[batch]]
        sums[name] = sum(map(_sum_of_rows, parts)) % 2**64
    return _sum_of_batch(sums)


def _matches(work: Path, plan: ExportPlan) -> bool:
    with suppress(Exception):  # whatever is wrong with what lies there, the answer is to begin again
        if read_json(work / "state.json") != plan.state:
            return False
        places = [(locate_array(work / "store", name), what) for name, what in plan.arrays.items()]
        return all((place.dtype, place.shape) == what for place, what in places)
    return False


def _begin(work: Path, plan: ExportPlan) -> None:
    store = work / "store"
    with translate_write_errors(work):
        (work / "state.json").unlink(missing_ok=True)
        for journal in work.glob("journal-*"):
            journal.unlink()
        shutil.rmtree(store, ignore_errors=True)
        free = free_bytes(work)
        if plan.nbytes > free:
            raise DiskFull(
                f"{store}: the features need {human_bytes(plan.nbytes)}, {human_bytes(free)} are free on this disk",
                "free some space, choose another disk, or export fewer blocks",
            )
        store.mkdir(parents=True)
        create_files(store, plan.arrays)
    write_json(work / "state.json", plan.state)  # last: without it, all the above is begun again


class StoreWriter:
    """Rows of several arrays, written batch by batch in any order, by one thread of each of several processes.

    ``work`` has been prepared; ``rank`` tells the processes apart.
    """

    def __init__(self, work: Path, plan: ExportPlan, rank: int = 0) -> None:
        self.work, self.store = work, work / "store"
        self._opened: dict[Path, int] = {}
        self._places = {name: locate_array(self.store, name) for name in plan.arrays}
        with translate_write_errors(work):
            # Never opened for reading: a network file system could then write back more of a page than our rows.
            self._journal = os.open(work / f"journal-{rank}", os.O_WRONLY | os.O_CREAT, 0o666)
            for path in {place.path for place in self._places.values()}:
                self._opened[path] = os.open(path, os.O_WRONLY)
        self._sums: dict[str, int] = {}  # of the rows of the batch that is being written
        self._waiting: dict[int, int] = {}  # batch -> what the journal is to record
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="flush")
        self._flushing: Future[None] | None = None
        self._flushed = time.monotonic()

    def write(self, name: str, row: int, values: NDArray[Any]) -> None:
        """Write ``values``, contiguous and as stored, over rows ``row`` and following of an array."""
        place = self._places[name]
        rows = values.reshape(-1).view(np.uint8).reshape(-1, place.row_bytes)
        self._sums[name] = (self._sums.get(name, 0) + _sum_of_rows(rows)) % 2**64
        view = rows.reshape(-1).data
        position = place.start + row * place.row_bytes
        with translate_write_errors(place.path):
            while view:
                written = os.pwrite(self._opened[place.path], view, position)
                view, position = view[written:], position + written

    def finish(self, batch: int) -> None:
        """Say that all rows of ``batch`` are written; they count as done after a flush, which begins now and then."""
        self._waiting[batch], self._sums = _sum_of_batch(self._sums), {}
        if time.monotonic() - self._flushed >= FLUSH_SECONDS:
            self.settle()
            self._flushing, self._waiting = self._thread.submit(self.flush, self._waiting), {}
            self._flushed = time.monotonic()

    def settle(self) -> None:
        """Wait for the flush under way; raises what it raised."""
        if self._flushing is not None:
            self._flushing.result()

    def complete(self) -> None:
        """Bring all that is written to disk."""
        self.settle()
        self.flush(self._waiting)
        self._waiting = {}

    def flush(self, batches: Mapping[int, int]) -> None:
        """Bring rows to disk, then the journal: a batch is never marked before its rows are safe."""
        with translate_write_errors(self.store):
            for handle in self._opened.values():
                os.fsync(handle)
            for batch, recorded in batches.items():
                os.pwrite(self._journal, recorded.to_bytes(SUM_BYTES, "little"), batch * SUM_BYTES)
            os.fsync(self._journal)

    def close(self) -> None:
        """Close all files; what was flushed stays for the next attempt."""
        self._thread.shutdown()
        for handle in (*self._opened.values(), self._journal):
            os.close(handle)

    def publish(self, out: Path, manifest: Mapping[str, Any]) -> None:
        """Write the manifests, rename the store to ``out`` and remove the working directory."""
        write_text(self.store / DESCRIPTION, canonical_json(manifest) + "\n")
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
