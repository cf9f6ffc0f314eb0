"""Rows written and hashed by several threads: what lies on the disk, and what is not read again."""

from __future__ import annotations

import hashlib
import os
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dinoskip.errors import DiskFull
from dinoskip.features import writer
from dinoskip.features.npy_files import contents, locate_array
from dinoskip.features.writer import StoreWriter, prepare

IMAGES, BATCH = 10, 3
BATCHES = [list(range(begin, min(begin + BATCH, IMAGES))) for begin in range(0, IMAGES, BATCH)]
ORDERS = {"in order": [0, 1, 2, 3], "in another order": [2, 0, 3, 1], "all but the first": [1, 2, 3]}


def plan() -> Any:
    half = np.dtype("<f2")
    arrays = {name: (half, (IMAGES, *shape)) for name, shape in (("a", (5, 4)), ("b", (2,)), ("c", (7, 3)))}
    nbytes = sum(int(np.prod(shape)) * 2 for _, shape in arrays.values())
    return SimpleNamespace(
        arrays=arrays,
        batches=BATCHES,
        nbytes=nbytes,
        state={"key": "k"},
        manifest={"key": "k"},
        starts=None,
        strides={},
    )


def values_of(name: str) -> np.ndarray:
    _, shape = plan().arrays[name]
    return np.random.default_rng(len(name) + ord(name)).standard_normal(shape).astype("<f2")


def written(work: Path, order: list[int], threads: int) -> StoreWriter:
    """A writer to which the batches of ``order`` were given and that has brought them to disk."""
    store = StoreWriter(work, plan(), 0, threads)
    for number in order:
        rows = BATCHES[number]
        for name in plan().arrays:
            store.write(name, rows[0], values_of(name)[rows[0] : rows[-1] + 1].view(np.int16))
        store.finish(number)
    store.complete()
    return store


@pytest.mark.parametrize("threads", [1, 2, 16])
@pytest.mark.parametrize("order", ORDERS)
def test_hashes_are_of_what_lies_on_the_disk(
    order: str, threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "CHUNK_BYTES", 50)  # several chunks a batch, and more than one row in some
    prepare(tmp_path, plan())
    with closing(written(tmp_path, ORDERS[order], threads)) as store:
        parts = [store.hashes(part, 2) for part in range(2)]
        whole = [file._hashed == file.place.path.stat().st_size for file in store._files.values()]
    assert all(whole) == (order == "in order"), "what came in order is not read again"
    assert {**parts[0], **parts[1]} == {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (tmp_path / "store").iterdir()
    }
    assert not set(parts[0]) & set(parts[1])
    for name in plan().arrays:
        rows = [row for number in ORDERS[order] for row in BATCHES[number]]
        np.testing.assert_array_equal(locate_array(tmp_path / "store", name).map()[rows], values_of(name)[rows])
    done = prepare(tmp_path, plan())
    assert [number for number, one in enumerate(done) if one] == sorted(ORDERS[order])


def test_a_full_disk_is_told_by_the_batch_after_or_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(tmp_path, plan())

    def full(*_: Any) -> int:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(DiskFull, match=r"a\.npy"):
        written(tmp_path, [0, 1], 2)


def test_an_array_s_file_is_read_through_for_its_hash_and_what_is_not_finite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(tmp_path, plan())
    with closing(written(tmp_path, ORDERS["in order"], 2)):
        pass
    places = [locate_array(tmp_path / "store", name) for name in plan().arrays]
    read = contents(places)
    assert [one.not_finite for one in read] == [None] * 3
    assert [one.sha256 for one in read] == [hashlib.sha256(p.path.read_bytes()).hexdigest() for p in places]
    array = np.lib.format.open_memmap(places[0].path, "r+")
    array[7, 2, 1], array[9, 0, 0] = np.nan, np.inf
    array.flush()
    os.utime(places[0].path, ns=(1, 1))
    assert contents(places)[0].not_finite == 7
