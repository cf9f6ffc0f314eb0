"""Sources of training images: a plain folder, or tar shards (WebDataset's layout, and our packed ones).

Shards are read in place: headers once, for an index of offsets, then images by offset, in any order, by any number of
processes. Nothing is extracted.
"""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dinoskip.data.folders import ImageFolder
from dinoskip.data.listing import content_marks, is_image_name, is_passed_over, name_key, nfc, prefix_of
from dinoskip.data.recognise.content import ImageContent, content_of
from dinoskip.data.recognise.label_maps import find_label_maps
from dinoskip.data.recognise.words import unread_container
from dinoskip.errors import DataError, DinoskipError, guard
from dinoskip.io.files import (
    MANIFEST,
    MAX_JSON,
    canonical_json,
    confined,
    hash_of,
    open_regular,
    read_json,
    read_manifest,
    read_regular,
    sha256_bytes,
    write_bytes,
)
from dinoskip.io.images import image_from_bytes, size_from_bytes
from dinoskip.runtime.console import log

PACK_RECORD = "pack.json"
INDEX_FORMAT = 2  # 1 had no sha256
LABEL_BYTES = 64  # a number below MAX_CLASSES has six digits: what is longer is another kind of file
MAX_CLASSES = 1_000_000  # a larger number is no class: a list of that many names would fill the memory


@dataclass(frozen=True)
class Shard:
    """One tar file's images, in its order: names, offsets and sizes in bytes, and class numbers (-1 where none is)."""

    names: tuple[str, ...]
    offsets: np.ndarray
    sizes: np.ndarray
    labels: np.ndarray

    def part(self, kept: Sequence[int]) -> Shard:
        """Return the images at these positions."""
        chosen = list(kept)
        return Shard(
            tuple(self.names[at] for at in chosen), self.offsets[chosen], self.sizes[chosen], self.labels[chosen]
        )


@dataclass(frozen=True, eq=False)
class TarShards:
    """Images inside tar files. ``names`` (``shard.tar/member``) are ids; ``shards`` are file names below ``root``.

    ``labels`` int64 (N,) are the numbers of the ``.cls`` members, or without any, those of the members' folders in
    ``class_names``; None where neither says. ``record`` is what a run notes of changed pixels, {} if they were not.
    """

    root: Path
    shards: tuple[str, ...]
    names: tuple[str, ...]
    shard_of: np.ndarray
    offsets: np.ndarray
    sizes: np.ndarray
    labels: np.ndarray | None
    class_names: tuple[str, ...]
    record: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def open(cls, path: str | Path) -> TarShards:
        """Index a .tar file, or all of a folder; :class:`DataError` for an unsafe, damaged or imageless one.

        Of a key with several images, label maps are left out, such as ``KEY.seg.png`` beside ``KEY.jpg``
        (:func:`dinoskip.data.recognise.label_maps.find_label_maps`).
        """
        path = Path(path)
        if path.is_file() and is_image_name(path.name):
            raise DataError(f"{path}: is one image", "give a folder of images, or a .tar of them")
        if path.is_file() and (advice := unread_container(path.name)):
            raise DataError(f"{path}: is no folder of images, and no uncompressed .tar of them", advice)
        root, shards = (path.parent, (path.name,)) if path.is_file() else (path, tar_names(path))
        if not shards:
            raise DataError(f"{path}: no such .tar file, nor a folder of them")
        parts = _photographs_of(path, root, shards, [read_index(root / shard) for shard in shards])
        names = tuple(f"{shard}/{name}" for shard, part in zip(shards, parts, strict=True) for name in part.names)
        if not names:
            raise DataError(f"{path}: no images in {len(shards)} tar files")
        labels, class_names = _labels(parts)
        record = {"packed": read_json(root / PACK_RECORD)} if is_packed(path) else {}
        shard_of = np.repeat(np.arange(len(shards)), [len(part.names) for part in parts])
        offsets = np.concatenate([part.offsets for part in parts])
        sizes = np.concatenate([part.sizes for part in parts])
        return cls(root, shards, names, shard_of, offsets, sizes, labels, class_names, record)

    @property
    def numbered(self) -> bool:
        """Whether the labels are those of ``.cls`` members, which folders' names would not give again."""
        return self.labels is not None and self.class_names[0] == "0"

    @property
    def ids(self) -> tuple[str, ...]:
        """One id per image: its shard and name."""
        return self.names

    def __len__(self) -> int:
        return len(self.names)

    def where(self, index: int) -> str:
        """Say where image ``index`` lies, for messages."""
        return f"{self.root / self.names[index]}"

    def encoded(self, index: int) -> bytes:
        """Return the bytes of image ``index``; :class:`DataError` if they cannot be read."""
        shard = self.root / self.shards[self.shard_of[index]]
        size = int(self.sizes[index])
        try:
            with open_regular(shard) as stream:  # opened anew: no descriptors to share, whatever forks
                content = os.pread(stream.fileno(), size, int(self.offsets[index]))
        except OSError as error:
            raise DataError(f"{shard}: cannot be read: {error.strerror}") from error
        if len(content) < size:
            raise DataError(f"{self.where(index)}: cut short: {len(content)} of {size} bytes")
        return content

    def read(self, index: int) -> np.ndarray:
        """Decode image ``index`` to uint8 (H, W, 3); :class:`DataError` if it cannot be."""
        return image_from_bytes(self.encoded(index), self.root / self.names[index])  # a root may state the range

    def size(self, index: int) -> tuple[int, int]:
        """Return its height and width from its header alone; :class:`DataError` if it cannot be read."""
        return size_from_bytes(self.encoded(index), self.where(index))

    @property
    def files(self) -> list[Path]:
        """Paths of the tar files, in order."""
        return [self.root / shard for shard in self.shards]

    def fingerprint(self) -> str:
        """Hex sha256 of the set: every byte up to 1 GiB, above that a sample, and all names and sizes."""
        marks: list[Any] = content_marks(self.files)
        prefix = prefix_of(marks)
        if prefix:
            marks.append(hash_of([[nfc(name) for name in self.names], self.sizes.tolist()]))
        return prefix + hash_of([[nfc(shard) for shard in self.shards], marks])


Source = ImageFolder | TarShards


def open_source(path: str | Path) -> Source:
    """Open a folder of images, a .tar file, a folder of .tar files, or what ``dinoskip data pack`` wrote.

    A folder that holds images or sub-folders beside tar files is a folder of images. Raises :class:`DataError`.
    """
    path = Path(path)
    return TarShards.open(path) if holds_shards(path) else ImageFolder.open(path)


def holds_shards(path: Path) -> bool:
    """Whether a path is a tar file, a folder of those without images or sub-folders, or a finished packing."""
    return path.is_file() or is_packed(path) or (path.is_dir() and bool(tar_names(path)) and not _holds_images(path))


def is_packed(path: Path) -> bool:
    """Whether ``path`` is a finished packing; :class:`DataError` if it is an unfinished one."""
    if (path / PACK_RECORD).is_file() and not (path / MANIFEST).is_file():
        raise DataError(f"{path}: packing was not finished", "run the same dinoskip data pack again")
    return (path / PACK_RECORD).is_file() and "pack" in read_manifest(path).info


def tar_names(folder: Path) -> tuple[str, ...]:
    """Names of the tar files directly in ``folder``, in the order of :func:`name_key`; () if it is no folder."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if entry.name.lower().endswith(".tar") and entry.is_file()]
    except NotADirectoryError:
        return ()
    except OSError as error:
        raise DataError(f"{folder}: cannot be listed: {error.strerror}") from error
    return tuple(sorted((name for name in names if not name.startswith(".")), key=name_key))


def _holds_images(folder: Path) -> bool:
    with os.scandir(folder) as entries:
        return any(
            not is_passed_over(entry.name) and (entry.is_dir() or is_image_name(entry.name)) for entry in entries
        )


def read_index(shard: Path) -> Shard:
    """Return the index of one tar file, from ``.NAME.index.json`` beside it if that is of this file, else made anew.

    The index holds its own sha256; one whose rows have changed since they were written is made anew, too, and the log
    says so. Writing it is tried and may fail: shards often lie where nobody may write.
    """
    cache = shard.with_name(f".{shard.name}.index.json")
    status = shard.stat()
    mark = [INDEX_FORMAT, status.st_size, status.st_mtime_ns]
    with suppress(DataError, OSError, ValueError, TypeError, LookupError, OverflowError, RecursionError):
        return _checked(_saved_index(cache, mark), shard, status.st_size)
    images = _scan(shard)
    index = _checked(images, shard, status.st_size)
    rows = canonical_json(images).encode()
    header = canonical_json({"mark": mark, "sha256": sha256_bytes(rows)}).encode()
    with suppress(OSError, DinoskipError):
        write_bytes(cache, header + b"\n" + rows)
    return index


def _saved_index(cache: Path, mark: list[int]) -> Any:
    """The rows of an index, its second line, of which the first gives the ``mark`` of the tar file and the sha256.

    Raises any error of reading JSON, :class:`DataError` for another mark and for rows that have changed.
    """
    header, _, rows = read_regular(cache, MAX_JSON).partition(b"\n")
    stated = json.loads(header)
    if stated["mark"] != mark:
        raise DataError(f"{cache}: of another tar file")
    if stated["sha256"] != sha256_bytes(rows):
        log.warning("%s: differs from its recorded sha256; the tar file is read anew", cache)
        raise DataError(f"{cache}: changed since it was written")
    return json.loads(rows)


def _photographs_of(path: Path, root: Path, shards: tuple[str, ...], parts: list[Shard]) -> list[Shard]:
    """Leave out label maps, and say how many."""
    places = {f"{shard}/{name}": (number, at) for number, shard in enumerate(shards)
              for at, name in enumerate(parts[number].names)}  # fmt: skip

    def look(name: str) -> ImageContent:
        number, at = places[name]
        shard, part = root / shards[number], parts[number]
        try:
            with open_regular(shard) as stream:
                return content_of(os.pread(stream.fileno(), int(part.sizes[at]), int(part.offsets[at])), shard)
        except OSError:
            return ImageContent("unreadable")

    maps = find_label_maps(tuple(sorted(places)), look).names
    if not maps:
        return parts
    log.warning(
        "%s: %d photographs; %d label maps are not images, such as %s", path, len(places) - len(maps), len(maps),
        min(maps),
    )  # fmt: skip
    return [
        part.part([at for at, name in enumerate(part.names) if f"{shard}/{name}" not in maps])
        for shard, part in zip(shards, parts, strict=True)
    ]


def _checked(images: list[list[Any]], shard: Path, size: int) -> Shard:
    """Make an index of [name, offset, size, label] rows that all lie inside the file."""
    names = tuple(str(row[0]) for row in images)
    numbers = np.array([row[1:4] for row in images], dtype=np.int64).reshape(-1, 3)
    if len(set(names)) != len(names):
        raise DataError(f"{shard}: holds two images of one name")
    if (numbers[:, :2] < 0).any() or (numbers[:, 0] > size - numbers[:, 1]).any():  # a sum could overflow
        raise DataError(f"{shard}: a member lies outside the file", "the file is cut short or damaged")
    if (numbers[:, 2] >= MAX_CLASSES).any():
        raise DataError(f"{shard}: class number {numbers[:, 2].max()} is not below {MAX_CLASSES}")
    return Shard(names, numbers[:, 0], numbers[:, 1], numbers[:, 2])


def _scan(shard: Path) -> list[list[Any]]:
    """Read all headers of a tar file; rows of [name, offset, size, label] of its images in order."""
    images: list[list[Any]] = []
    labels: dict[str, int] = {}
    with (
        guard(shard, "uncompressed tar file"),
        open_regular(shard) as stream,
        tarfile.open(None, "r:", stream) as archive,
    ):
        for member in archive:
            name = member.name.removeprefix("./")
            _refuse_unsafe(shard, member)
            if not member.isfile() or os.path.basename(name).startswith("."):
                continue
            if is_image_name(os.path.basename(name)):
                images.append([name, member.offset_data, member.size, -1])
            elif name.endswith(".cls"):
                labels[key_of(name)] = _label(shard, archive, member)
    for row in images:
        row[3] = labels.get(key_of(row[0]), -1)
    return images


def key_of(name: str) -> str:
    """WebDataset's key of a member: its path up to the first dot of the last part."""
    folder, _, last = name.rpartition("/")
    return f"{folder}/{last.partition('.')[0]}"


def _refuse_unsafe(shard: Path, member: tarfile.TarInfo) -> None:
    if not (member.isfile() or member.isdir()) or member.issparse():
        raise DataError(f"{shard}: refused: member {member.name!r} is a link or device, not a plain file")
    confined(shard, member.name, shard)


def _label(shard: Path, archive: tarfile.TarFile, member: tarfile.TarInfo) -> int:
    stream = archive.extractfile(member)
    text = stream.read(LABEL_BYTES).decode("ascii", "replace").strip() if stream else ""
    if member.size > LABEL_BYTES or not text.isdecimal() or not text.isascii() or int(text) >= MAX_CLASSES:
        raise DataError(f"{shard}: {member.name}: expected a class number, got {text[:20]!r}")
    return int(text)


def _labels(parts: list[Shard]) -> tuple[np.ndarray | None, tuple[str, ...]]:
    labels = np.concatenate([part.labels for part in parts])
    if (labels >= 0).all():
        return labels, tuple(str(number) for number in range(int(labels.max()) + 1))
    folders = [name.rpartition("/")[0] for part in parts for name in part.names]
    if (labels >= 0).any() or not all(folders):
        return None, ()
    classes = sorted(set(folders), key=name_key)
    number = {name: index for index, name in enumerate(classes)}
    return np.array([number[name] for name in folders], dtype=np.int64), tuple(classes)
