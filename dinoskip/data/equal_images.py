"""Images that two sets have in common, by their bytes. Files are read only where both sets have one of their size."""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dinoskip.data.listing import evenly_spread
from dinoskip.data.shards import TarShards
from dinoskip.errors import guard
from dinoskip.io.files import hash_of, open_regular

VERSION = 1
"""Of the comparison: part of the key under which a result is kept."""
MOST = 5000
"""Scored images that are looked for, of more an even sample. If one image in 600 is leaked, 5,000 miss it once in 4,000
sets. Of a training set of millions only files that share a size with one of these are read."""
_PIECE = 4096  # bytes from the middle of a file: JPEGs of one camera begin alike, and few files agree in the middle
READERS = 8  # files in flight: on a network file system a read waits, and does not compute


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """Locations of the bytes of a set's images: image i is ``sizes[i]`` bytes from ``offsets[i]`` of ``paths[i]``.

    ``offsets``, ``sizes`` and ``times`` (of the last change of the file, ns) are int64 (N,); names of images are shown
    below the folder ``root``.
    """

    root: Path
    paths: Sequence[Path]
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    times: NDArray[np.int64]

    @classmethod
    def of(cls, opened: Any, root: Path) -> ImageFiles:
        """The images of an opened split or source. Raises :class:`DataError` for a file that is not there."""
        if isinstance(opened, TarShards):
            paths = [opened.root / opened.shards[shard] for shard in opened.shard_of]
            times = np.array([_status(path).st_mtime_ns for path in opened.files], dtype=np.int64)
            return cls(root, paths, opened.offsets, opened.sizes, times[opened.shard_of])
        paths = [opened.path(index) for index in range(len(opened))]
        marks = [(status.st_size, status.st_mtime_ns) for status in map(_status, paths)]
        sizes, times = np.array(marks, dtype=np.int64).reshape(-1, 2).T
        return cls(root, paths, np.zeros(len(paths), dtype=np.int64), sizes, times)

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def fingerprint(self) -> str:
        """Hex sha256 of names, places, sizes and times of change of all images."""
        names = hashlib.sha256("\0".join(map(str, self.paths)).encode("utf-8", "surrogateescape")).hexdigest()
        numbers = np.stack([self.offsets, self.sizes, self.times])
        return hash_of([names, hashlib.sha256(numbers.tobytes()).hexdigest()])

    def shown(self, index: int) -> str:
        """Name of an image below the root; its whole path where it lies elsewhere."""
        path = self.paths[index]
        name = path.relative_to(self.root).as_posix() if path.is_relative_to(self.root) else str(path)
        return f"{name} at {self.offsets[index]}" if self.offsets[index] else name

    def identity(self, index: int) -> tuple[int, int, int]:
        """Device, inode and offset, which a file has under all of its names."""
        status = _status(self.paths[index])
        return status.st_dev, status.st_ino, int(self.offsets[index])

    def encoded(self, index: int) -> bytes:
        """The bytes of an image."""
        return self._piece(index, 0, int(self.sizes[index]))

    def digest(self, index: int, *, whole: bool) -> bytes:
        """The sha256 of an image's bytes: of the ``whole``, or of a piece from the middle."""
        size = int(self.sizes[index])
        length = size if whole else min(size, _PIECE)
        return hashlib.sha256(self._piece(index, (size - length) // 2, length)).digest()

    def _piece(self, index: int, begin: int, length: int) -> bytes:
        with guard(self.paths[index], "image"), open_regular(self.paths[index]) as stream:
            stream.seek(int(self.offsets[index]) + begin)
            return stream.read(length)


@dataclass(frozen=True)
class Common:
    """Images that two sets have in common.

    ``count`` of the ``looked_at`` images of the first set, which has ``total``, are in the second. ``example`` are the
    names of such an image in both. ``same``: both are the same files, under whatever names.
    """

    count: int
    looked_at: int
    total: int
    example: tuple[str, str] = ("", "")
    same: bool = False


def _status(path: Path) -> os.stat_result:
    with guard(path, "image"):
        return os.stat(path)


def common_images(scored: ImageFiles, fitted: ImageFiles) -> Common:
    """Return how many images of ``scored``, an even sample where they are very many, are byte for byte in ``fitted``.

    Raises :class:`DataError` for a file that cannot be read.
    """
    looked = np.array(evenly_spread(len(scored), MOST), dtype=int)
    mine = looked[np.isin(scored.sizes[looked], fitted.sizes)]
    theirs = np.flatnonzero(np.isin(fitted.sizes, scored.sizes[mine]))
    pairs = _equal(scored, mine.tolist(), fitted, theirs.tolist())
    example = (scored.shown(pairs[0][0]), fitted.shown(pairs[0][1])) if pairs else ("", "")
    every = len(pairs) == len(looked) and len(scored) == len(fitted) > 0
    same = every and {*map(scored.identity, range(len(scored)))} == {*map(fitted.identity, range(len(fitted)))}
    return Common(len(pairs), len(looked), len(scored), example, same)


@dataclass(frozen=True)
class Copies:
    """Images of a split whose bytes are those of an image of another class: ``count`` of ``looked_at``."""

    count: int
    looked_at: int
    example: tuple[str, str] = ("", "")


def copies_in_classes(files: ImageFiles, labels: Sequence[int]) -> Copies:
    """Return how many images, of an even sample of very many, are byte for byte in another class of ``labels`` too.

    One file under several names counts. Raises :class:`DataError` for a file that cannot be read.
    """
    looked = np.array(evenly_spread(len(files), MOST), dtype=int)
    sizes, counts = np.unique(files.sizes, return_counts=True)
    mine = looked[np.isin(files.sizes[looked], sizes[counts > 1])]
    rest = np.flatnonzero(np.isin(files.sizes, files.sizes[mine])).tolist()
    with ThreadPoolExecutor(READERS) as pool:
        for whole in (False, True):
            alike = defaultdict[Any, list[int]](list)
            for number, mark in zip(rest, _marks(pool, files, rest, whole=whole), strict=True):
                alike[mark].append(number)
            rest = [number for group in alike.values() if len({labels[n] for n in group}) > 1 for number in group]
    found = np.intersect1d(mine, np.array(rest, dtype=int)).tolist()
    if not found:
        return Copies(0, len(looked))
    group = next(group for group in alike.values() if found[0] in group)
    other = next(number for number in group if labels[number] != labels[found[0]])
    return Copies(len(found), len(looked), (files.shown(found[0]), files.shown(other)))


def _equal(scored: ImageFiles, mine: Sequence[int], fitted: ImageFiles, theirs: Sequence[int]) -> list[tuple[int, int]]:
    """Pairs of equal images, one for each of ``mine`` that has one, of candidates by their numbers.

    By identity, then by size and a piece, then by all bytes of those that agree so far.
    """
    with ThreadPoolExecutor(READERS) as pool:
        known = _first(pool.map(fitted.identity, theirs), theirs)
        pairs = {i: known[one] for i, one in zip(mine, pool.map(scored.identity, mine), strict=True) if one in known}
        rest = [i for i in mine if i not in pairs]
        pieces, others = (_marks(pool, *of, whole=False) for of in ((scored, rest), (fitted, theirs)))
        known_pieces, known_others = set(pieces), set(others)
        rest = [i for i, mark in zip(rest, pieces, strict=True) if mark in known_others]
        alike = [j for j, mark in zip(theirs, others, strict=True) if mark in known_pieces]
        contents, others = (_marks(pool, *of, whole=True) for of in ((scored, rest), (fitted, alike)))
        first = _first(others, alike)
        pairs |= {i: first[mark] for i, mark in zip(rest, contents, strict=True) if mark in first}
    return sorted(pairs.items())


def _marks(pool: ThreadPoolExecutor, files: ImageFiles, numbers: Sequence[int], *, whole: bool) -> list[Any]:
    """Size and digest of some images."""
    digests = pool.map(lambda number: files.digest(number, whole=whole), numbers)
    return [(int(files.sizes[number]), digest) for number, digest in zip(numbers, digests, strict=True)]


def _first(marks: Iterable[Any], numbers: Sequence[int]) -> dict[Any, int]:
    """The first number of each mark."""
    found: dict[Any, int] = {}
    for mark, number in zip(marks, numbers, strict=True):
        found.setdefault(mark, number)
    return found
