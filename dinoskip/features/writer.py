"""Write a feature store so that it can be stopped anywhere: files laid out first, a journal of batches, one rename.

While it grows it is ``.partial-NAME`` beside its place: ``state.json`` (what is being exported), a ``journal-RANK`` of
each process (for a batch that is on disk, the check sum of its rows), ``store/`` (the files to be). Rows are written
with pwrite into reserved space, not through a memory map: a full disk is then an error and not a SIGBUS.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import time
import zlib
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dinoskip.errors import ConfigError, DataError, DinoskipError, DiskFull, translate_write_errors
from dinoskip.features.export_plan import ExportPlan
from dinoskip.features.npy_files import ArrayLocation, create_files, locate_array
from dinoskip.features.store import DESCRIPTION, PROVENANCE
from dinoskip.io.files import (
    TEMPORARY,
    canonical_json,
    open_regular,
    publish_directory,
    read_json,
    read_regular,
    write_json,
    write_manifest,
    write_text,
)
from dinoskip.io.output import refuse_links_in, remove
from dinoskip.runtime.console import human_bytes
from dinoskip.runtime.provenance import made

FLUSH_SECONDS = 5.0  # about so much work is lost to a kill
SUM_BYTES = 4  # of a journal's entry for a batch
CHUNK_BYTES = 2**20  # summed, hashed and written before the next: stays in a core's cache meanwhile
BATCHES_AHEAD = 2  # given and not yet written, so that a thread with the larger part of one goes on with the next
FLUSH_THREADS = 8  # a file system brings what several threads wait for to the disk together


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
        content = read_regular(journal, SUM_BYTES * len(done))
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
    """Return the checksum of a batch in a journal, never 0, from the sums of its rows in each array."""
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
    _remove_work(work)
    with translate_write_errors(work):
        free = free_bytes(work)
        if plan.nbytes > free:
            raise DiskFull(
                f"{store}: the features need {human_bytes(plan.nbytes)}, {human_bytes(free)} are free on this disk",
                "free some space, choose another disk, or export fewer blocks",
            )
        store.mkdir(parents=True)
        create_files(store, plan.arrays)
    write_json(work / "state.json", plan.state)  # last: without it, all the above is begun again


class _RowFile:
    """A file of a store, written by one thread at a time, and hashed on the way as far as its rows come in order."""

    def __init__(self, place: ArrayLocation) -> None:
        self.place = place
        # Never opened for reading: a network file system could then write back more of a page than our rows.
        self.handle = os.open(place.path, os.O_WRONLY)
        with open_regular(place.path) as stream:
            self._hash = hashlib.sha256(stream.read(place.start))
        self._hashed = place.start  # bytes of the file, from its beginning, that are in the hash

    def write(self, row: int, values: NDArray[Any]) -> int:
        """Write ``values``, contiguous, over rows ``row`` and following; return the sum of these rows."""
        rows = values.reshape(-1).view(np.uint8).reshape(-1, self.place.row_bytes)
        step, total = max(1, CHUNK_BYTES // max(1, self.place.row_bytes)), 0
        with translate_write_errors(self.place.path):
            for begin in range(0, len(rows), step):
                part = rows[begin : begin + step]
                total += _sum_of_rows(part)
                self._write_bytes(part.reshape(-1).data, self.place.start + (row + begin) * self.place.row_bytes)
        return total % 2**64

    def _write_bytes(self, view: memoryview, position: int) -> None:
        if position == self._hashed:
            self._hash.update(view)
            self._hashed += len(view)
        while view:
            written = os.pwrite(self.handle, view, position)
            view, position = view[written:], position + written

    def sha256(self) -> str:
        """The hash of the whole file, of which is read what could not be hashed on the way."""
        digest = self._hash.copy()
        try:
            with open_regular(self.place.path) as stream:
                stream.seek(self._hashed)
                while part := stream.read(CHUNK_BYTES):
                    digest.update(part)
        except OSError as error:
            raise DataError(f"{self.place.path}: cannot be read: {error.strerror}") from None
        return digest.hexdigest()


class StoreWriter:
    """Rows of several arrays, given batch by batch in any order, by one thread of each of several processes.

    ``work`` has been prepared; ``rank`` tells the processes apart. Rows are written by ``threads`` threads, those of
    an array always by the same one and in the order in which they are given.
    """

    def __init__(self, work: Path, plan: ExportPlan, rank: int = 0, threads: int = 1) -> None:
        self.work, self.store = work, work / "store"
        places = {name: locate_array(self.store, name) for name in plan.arrays}
        self._files: dict[str, _RowFile] = {}
        with translate_write_errors(work):
            self._journal = os.open(work / f"journal-{rank}", os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o666)
            for name, place in places.items():
                self._files[name] = _RowFile(place)
        largest_first = sorted(places, key=lambda name: -places[name].path.stat().st_size)
        self._threads = [
            ThreadPoolExecutor(1, thread_name_prefix="rows") for _ in range(min(max(1, threads), len(places)))
        ]
        self._thread_of = {name: self._threads[at % len(self._threads)] for at, name in enumerate(largest_first)}
        self._given: list[tuple[str, Future[int]]] = []  # of the batch that is being given
        self._batches: deque[tuple[int, list[tuple[str, Future[int]]]]] = deque()  # given whole, not known as written
        self._waiting: dict[int, int] = {}  # batch -> what the journal is to record
        self._flushes = ThreadPoolExecutor(1, thread_name_prefix="flush")
        self._flushing: Future[None] | None = None
        self._flushed = time.monotonic()

    def write(self, name: str, row: int, values: NDArray[Any]) -> None:
        """Have ``values``, contiguous, as stored and not changed later, written over rows ``row`` and following."""
        self._given.append((name, self._thread_of[name].submit(self._files[name].write, row, values)))

    def finish(self, batch: int) -> None:
        """Say that all rows of ``batch`` are given. They count as done after a flush, which begins now and then.

        Waits while more than ``BATCHES_AHEAD`` batches are to be written; raises what writing an earlier one raised.
        """
        self._batches.append((batch, self._given))
        self._given = []
        while len(self._batches) > BATCHES_AHEAD:
            self._await_oldest()

    def _await_oldest(self) -> None:
        batch, written = self._batches.popleft()
        sums: dict[str, int] = {}
        for name, rows in written:
            sums[name] = (sums.get(name, 0) + rows.result()) % 2**64
        self._waiting[batch] = _sum_of_batch(sums)
        if time.monotonic() - self._flushed >= FLUSH_SECONDS:
            self._await_flush()
            self._flushing, self._waiting = self._flushes.submit(self.flush, self._waiting), {}
            self._flushed = time.monotonic()

    def _await_flush(self) -> None:
        if self._flushing is not None:
            self._flushing.result()

    def settle(self) -> None:
        """Wait until all batches given are written, and for the flush under way; raises what these raised."""
        while self._batches:
            self._await_oldest()
        self._await_flush()

    def complete(self) -> None:
        """Bring all that was given to disk."""
        self.settle()
        self.flush(self._waiting)
        self._waiting = {}

    def flush(self, batches: Mapping[int, int]) -> None:
        """Bring rows to disk, then the journal: a batch is never marked before its rows are safe."""
        with translate_write_errors(self.store):
            with ThreadPoolExecutor(min(FLUSH_THREADS, len(self._files))) as pool:
                list(pool.map(os.fsync, [file.handle for file in self._files.values()]))
            for batch, recorded in batches.items():
                os.pwrite(self._journal, recorded.to_bytes(SUM_BYTES, "little"), batch * SUM_BYTES)
            os.fsync(self._journal)

    def close(self) -> None:
        """Close all files; batches given whole before whatever ends the export stay for the next attempt."""
        try:
            if self._batches or self._waiting:
                self.complete()
        except (DinoskipError, OSError):
            pass  # a disk that is full, of which has been told
        finally:
            for thread in (*self._threads, self._flushes):
                thread.shutdown(cancel_futures=True)
            for handle in (*(file.handle for file in self._files.values()), self._journal):
                os.close(handle)

    def hashes(self, part: int = 0, parts: int = 1) -> dict[str, str]:
        """The sha256 of every ``parts``-th file from number ``part``, by name; all rows of all processes are on disk.

        What this process has written in order, from the first row on, is not read again.
        """
        mine = list(self._files.values())[part::parts]
        with ThreadPoolExecutor(len(self._threads)) as pool:
            return {
                file.place.path.name: found for file, found in zip(mine, pool.map(_RowFile.sha256, mine), strict=True)
            }

    def publish(
        self, out: Path, manifest: Mapping[str, Any], hashes: Mapping[str, str], provenance: Mapping[str, Any]
    ) -> None:
        """Write the manifests, rename the store to ``out`` and remove the working directory.

        ``hashes`` are the sha256 of all files of arrays (:meth:`hashes`). ``provenance``, with the date, is in no
        manifest: two exports of the same features have the same manifest.
        """
        write_text(self.store / DESCRIPTION, canonical_json(manifest) + "\n")
        # left out: it may be there already, where an earlier attempt was killed before the store was renamed
        write_manifest(self.store, {"kind": "features", "key": manifest["key"]}, left_out=[PROVENANCE], hashes=hashes)
        write_json(self.store / PROVENANCE, {**provenance, **made()})
        publish_directory(self.store, out)
        discard(self.work)


def discard(work: Path) -> None:
    """Remove what an export made in its working directory; the lock's holder removes that."""
    _remove_work(work)


def _remove_work(work: Path) -> None:
    """Remove the state first: without it, all is begun again."""
    for path in (work / "state.json", *work.glob("journal-*"), work / "store"):
        remove(path)


def refuse_foreign(work: Path) -> None:
    """:class:`ConfigError` for a working directory that is a link, or in which is what no export makes."""
    refuse_links_in(work)
    for path in sorted(work.iterdir()) if work.is_dir() else ():
        if not re.fullmatch(rf"state\.json|store|journal-\d+|\.lock.*|{re.escape(TEMPORARY)}.*", path.name):
            raise ConfigError(f"{path}: no export has made this in its working folder", "move it away")
