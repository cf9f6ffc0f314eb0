"""The only extractor of archives: tar and zip, every member checked before the first is written, published by renames.

An archive is untrusted. Folders and regular files are all it may hold; a member that is a link or a device, points
outside, comes twice, or is more than the limits allow makes the whole archive refused, and nothing is left of it.
tarfile's own ``data`` filter allows links and strips leading slashes, so it would not refuse these; zipfile has none.

An archive may unpack to :data:`MAX_RATIO` times its own size and to :data:`MAX_BYTES`; that is checked by the sizes
that members declare, before anything is written, and while a compressed tar is read.
"""

from __future__ import annotations

import bz2
import filecmp
import gzip
import hashlib
import lzma
import os
import shutil
import stat
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, cast

from dinoskip.errors import DataError, DiskFull, guard, translate_write_errors
from dinoskip.io.files import TEMPORARY, confined, open_regular
from dinoskip.io.locks import directory_lock
from dinoskip.io.output import move_new, remove

# The first bounds the list of members in memory, the second the disk, whatever an archive declares; both are far above
# ImageNet's training images (1.3 million files, 138 GB).
MAX_FILES = 5_000_000
MAX_BYTES = 1 << 40
MAX_RATIO = 100  # published archives of images hardly compress, JSON and label maps 5 to 30 times
ALLOWED_BYTES = 64 << 20  # whatever the ratio
_CHUNK = 1 << 20  # bytes copied at once: a member of any size takes no more memory
_SCRATCH = f"{TEMPORARY}unpack-"


@dataclass(frozen=True)
class Member:
    """A regular file of an archive: its safe relative name, its size in bytes as declared, and how to open it."""

    name: str
    size: int
    open: Callable[[], Any]


def md5_file(path: Path) -> str:
    """Return the hex md5 of a file, as data sets publish it; no protection against anyone who means harm."""
    with open_regular(path) as stream:
        return hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _parts(archive: Path, name: str) -> tuple[str, ...]:
    """Split a member's name; refuse those that are absolute, climb, or mean other places on other systems."""
    confined(Path(), name, archive)
    parts = tuple(part for part in name.split("/") if part not in {"", "."})
    if (parts and parts[0][1:2] == ":") or any(part.startswith(TEMPORARY) for part in parts):
        raise DataError(f"{archive}: refused: entry {name!r} points outside its folder")
    return parts


class _Bounded:
    """A stream that may not be read beyond ``limit`` bytes: what a compressed tar is read through."""

    def __init__(self, stream: IO[bytes], archive: Path, limit: int) -> None:
        self.stream, self.archive, self.limit = stream, archive, limit

    def _upto(self, place: int) -> None:
        if place > self.limit:
            raise _too_much(self.archive, self.limit)

    def read(self, size: int = -1) -> bytes:
        """Read up to ``size`` bytes."""
        self._upto(self.stream.tell() + max(0, size))
        return self.stream.read(size)

    def seek(self, place: int, whence: int = os.SEEK_SET) -> int:
        """Move the reading position to a byte of the archive."""
        self._upto(place)
        return self.stream.seek(place, whence)

    def tell(self) -> int:
        """Return the number of the next byte."""
        return self.stream.tell()


_DECOMPRESSORS: dict[bytes, Callable[[IO[bytes]], Any]] = {
    b"\x1f\x8b": lambda stream: gzip.GzipFile(fileobj=stream),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\x00": lzma.LZMAFile,
}


def _too_much(archive: Path, limit: int) -> DataError:
    return DataError(
        f"{archive}: refused: it unpacks to more than {limit:,} bytes, {MAX_RATIO} times its own size",
        "if you trust it, unpack it yourself",
    )


def _tar_members(archive: Path, stack: ExitStack, limit: int) -> Iterator[tuple[str, int, bool, Callable[[], Any]]]:
    stream = stack.enter_context(open_regular(archive))
    begin = stream.read(6)
    stream.seek(0)
    decompress = next((make for magic, make in _DECOMPRESSORS.items() if begin.startswith(magic)), None)
    if decompress is None:
        opened = stack.enter_context(tarfile.TarFile(fileobj=stream))
    else:
        unpacked = stack.enter_context(decompress(stream))
        # Padding at the end of a tar, and a read that looks ahead, are not members.
        bounded = cast("IO[bytes]", _Bounded(unpacked, archive, limit + ALLOWED_BYTES))
        opened = stack.enter_context(tarfile.TarFile(fileobj=bounded))
    for member in opened:
        if not (member.isreg() or member.isdir()) or member.issparse():
            raise DataError(f"{archive}: refused: member {member.name!r} is a link or a special file")
        yield member.name, member.size, member.isdir(), partial(opened.extractfile, member)
    while opened.fileobj is not None and opened.fileobj.read(_CHUNK):  # to the checksum at the end of a compressed one
        pass


def _zip_members(archive: Path, stack: ExitStack, limit: int) -> Iterator[tuple[str, int, bool, Callable[[], Any]]]:
    opened = stack.enter_context(zipfile.ZipFile(stack.enter_context(open_regular(archive))))
    for member in opened.infolist():
        kind = stat.S_IFMT(member.external_attr >> 16)
        if kind not in {0, stat.S_IFREG, stat.S_IFDIR}:
            raise DataError(f"{archive}: refused: member {member.filename!r} is a link or a special file")
        if member.flag_bits & 0x1:
            raise DataError(f"{archive}: refused: member {member.filename!r} is encrypted")
        yield member.filename, member.file_size, member.is_dir(), partial(opened.open, member)


def _checked(archive: Path, stack: ExitStack, max_files: int, max_bytes: int) -> list[Member]:
    """Every regular file of an archive, after a look at all members."""
    with open_regular(archive) as stream:
        reader = _zip_members if stream.read(2) == b"PK" else _tar_members
        limit = min(max_bytes, max(MAX_RATIO * os.fstat(stream.fileno()).st_size, ALLOWED_BYTES))
    members: list[Member] = []
    seen: set[tuple[str, ...]] = set()
    total = 0
    for name, size, folder, opener in reader(archive, stack, limit):
        parts = _parts(archive, name)
        if folder:
            continue
        if not parts or parts in seen:
            raise DataError(f"{archive}: refused: member {name!r} comes twice or has no name")
        seen.add(parts)
        total += size
        if len(seen) > max_files or total > max_bytes:
            raise DataError(f"{archive}: refused: more than {max_files:,} files or {max_bytes:,} bytes")
        if total > limit:
            raise _too_much(archive, limit)
        members.append(Member("/".join(parts), size, opener))
    both = next((parts for parts in seen for end in range(1, len(parts)) if parts[:end] in seen), None)
    if both:
        raise DataError(f"{archive}: refused: member {'/'.join(both)!r} lies in what is a file")
    if not members:
        raise DataError(f"{archive}: holds no files")
    return members


def _write(archive: Path, member: Member, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    source: IO[bytes]
    written = 0
    with member.open() as source, open(target, "xb") as stream:
        while chunk := source.read(_CHUNK):
            written += len(chunk)
            if written > member.size:
                break
            stream.write(chunk)
    if written != member.size:
        raise DataError(f"{archive}: member {member.name!r} does not have the {member.size:,} bytes it declares")


def _merge(source: Path, target: Path) -> None:
    """Rename a tree into place: whole folders where there is none yet; files that are there stay as they are."""
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        move_new(source, target)
    elif source.is_dir():
        for entry in sorted(source.iterdir()):
            _merge(entry, target / entry.name)


def _conflict(source: Path, target: Path) -> Path | None:
    """The first place in ``target`` that holds something else than ``source`` would bring."""
    if not os.path.lexists(target):
        return None
    if target.is_symlink() or source.is_dir() != target.is_dir():
        return target
    if source.is_dir():
        return next((bad for entry in sorted(source.iterdir()) if (bad := _conflict(entry, target / entry.name))), None)
    return None if filecmp.cmp(source, target, shallow=False) else target


def unpack(
    archive: str | Path,
    out: str | Path,
    place: Callable[[Sequence[str]], str] = lambda _: "",
    *,
    max_files: int = MAX_FILES,
    max_bytes: int = MAX_BYTES,
) -> int:
    """Unpack a .tar (also compressed) or .zip into a folder below ``out``; return the number of files.

    ``place`` gets the names of all files and says into which sub-folder of ``out`` they go. They are unpacked beside it
    and renamed into place when all are there; files that are there already with the same bytes stay. Raises
    :class:`DataError` naming the member for whatever is unsafe, damaged or differs from what is there, and
    :class:`DiskFull` before writing if there is not enough space; then ``out`` is as it was.
    """
    archive, out = Path(archive), Path(out)
    with ExitStack() as stack, guard(archive, "archive (tar or zip)"):
        members = _checked(archive, stack, max_files, max_bytes)
        folder = place([member.name for member in members])
        with translate_write_errors(out):
            out.mkdir(parents=True, exist_ok=True)
            need, free = sum(member.size for member in members), shutil.disk_usage(out).free
            if need > free:
                raise DiskFull(f"{out}: {archive.name} unpacks to {need:,} bytes, {free:,} are free")
            stack.enter_context(directory_lock(out))
            for left in out.glob(f"{_SCRATCH}*"):  # of one that was killed
                remove(left, quiet=True)
            scratch = stack.enter_context(
                tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=out, ignore_cleanup_errors=True)
            )
            fresh, final = Path(scratch) / "tree", out / folder
            for member in members:
                _write(archive, member, fresh / member.name)
            if bad := _conflict(fresh, final):
                raise DataError(
                    f"{bad}: differs from what {archive.name} holds", "move it away, or choose another --out"
                )
            _merge(fresh, final)
    return len(members)
