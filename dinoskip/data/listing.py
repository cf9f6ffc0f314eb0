"""Images below a folder: their names in one order on every machine and mount, and what tells one set from another.

Names are sorted by the UTF-8 bytes of their NFC form, so that neither the file system's order, nor the locale,
nor the Unicode form it stores names in, changes which image is number 17.
"""

from __future__ import annotations

import hashlib
import os
import stat
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dinoskip.data.schema import unique
from dinoskip.errors import ConfigError, DataError, guard
from dinoskip.io.files import confined, hash_of, open_regular, read_regular, sha256_file
from dinoskip.io.images import EXTENSIONS
from dinoskip.io.pixel_range import pixel_range
from dinoskip.io.texts import decoded_text
from dinoskip.runtime.console import log

FULL_HASH_BYTES = 1 << 30  # more is known by a sample: hashing an ImageNet costs more than it protects from
SAMPLED = "sampled-"
"""Prefix of the fingerprint of a set that is identified by sizes, times and a sample of its bytes."""
SAMPLED_FILES = 1024  # three pieces of each: at most 192 MiB are read, however large the set
_SAMPLED_BYTES = 1 << 16  # at the beginning, in the middle and at the end of a file
MAX_TEXT = 64 << 20  # bytes of a list


def evenly_spread(count: int, most: int) -> list[int]:
    """At most so many of ``count`` positions, evenly spread, in ascending order."""
    return list(range(count)) if count <= most else np.linspace(0, count - 1, most).astype(int).tolist()


def nfc(name: str) -> str:
    """Return a file name in Unicode NFC, so that it is the same whichever system stored it."""
    return unicodedata.normalize("NFC", name)


def name_key(name: str) -> tuple[bytes, bytes]:
    """Sort key of a file name: its NFC UTF-8 bytes, then the bytes as stored (to separate NFC from NFD twins)."""
    return nfc(name).encode("utf-8", "surrogateescape"), name.encode("utf-8", "surrogateescape")


LEFT_BY_TOOLS = frozenset(
    {
        "__macosx", "@eadir", "#recycle", "$recycle.bin", "lost+found", ".ipynb_checkpoints", ".appledouble",
        ".thumbnails", ".trashes",
    }
)  # fmt: skip
"""Folders, in lower case, that archivers, network drives and notebooks leave: their files are copies or thumbnails."""


def is_passed_over(name: str) -> bool:
    """Whether a file or folder of this name is not looked at: hidden ones, and :data:`LEFT_BY_TOOLS`."""
    return name.startswith(".") or name.lower() in LEFT_BY_TOOLS


@lru_cache(maxsize=1 << 10)
def _say_once(root: Path, folders: tuple[str, ...]) -> None:
    """Log the folders that were passed over once in a process: a set is listed several times."""
    shown = ", ".join(folders[:3]) + (f" and {len(folders) - 3} more" if len(folders) > 3 else "")
    log.info("%s: passed over what tools leave: %s", root, shown)


def is_image_name(name: str) -> bool:
    """Whether a file of this name is listed as an image: a known extension, and not hidden (``._`` files are)."""
    return not name.startswith(".") and os.path.splitext(name)[1].lower() in EXTENSIONS


def require_folder(root: Path, expected: str) -> None:
    """Raise :class:`DataError` saying what was ``expected`` unless ``root`` is a readable folder."""
    if not root.exists():
        raise DataError(f"{root}: no such folder: expected {expected}")
    if not root.is_dir():
        raise DataError(f"{root}: is a file: expected {expected}", "give the folder that it lies in")


def read_text(path: Path, what: str) -> str:
    """Read a list, at most 64 MiB, as :func:`dinoskip.io.texts.decoded_text`; ``what`` it is, for messages.

    Lines end as the file has them. Raises :class:`DataError`.
    """
    with guard(path, what):
        return decoded_text(read_regular(path, MAX_TEXT))


def folder_with(inside: str, root: Path, name: str, archive: str) -> Path:
    """Return ``root`` or ``root/name``, whichever has a folder ``inside``; :class:`DataError` naming the archive."""
    require_folder(root, f"the folder {name} of {archive}")
    for folder in (root, root / name):
        if (folder / inside).is_dir():
            return folder
    raise DataError(f"{root}: no {inside} here: expected {archive}, unpacked")


def read_names(path: Path, what: str) -> list[str]:
    """File names that a list has, a word each; :class:`DataError` for an empty list, a path or a name listed twice."""
    names = read_text(path, f"list of {what}s").split()
    if not names or any(confined(path.parent, name, path).name != name or name.startswith(".") for name in names):
        raise DataError(f"{path}: expected the name of a {what} on every line")
    unique(names, what, path)
    return names


def _identity(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_dev, status.st_ino


class FolderFiles(NamedTuple):
    """Relative POSIX names of the files below a folder: those listed as images, and others; hidden ones in neither."""

    images: tuple[str, ...]
    others: tuple[str, ...]


def list_folder(root: str | Path) -> FolderFiles:
    """List all files below ``root``, images sorted by :func:`name_key`, others as they come.

    Sub-folders are entered, linked ones too unless the link leads back to a folder on the way to it. Hidden files,
    ``._`` files and hidden folders are passed over, as are :data:`LEFT_BY_TOOLS`, which are logged. An image has an
    extension of :data:`dinoskip.io.images.EXTENSIONS`.
    Raises :class:`DataError` if ``root`` is missing or unreadable.
    """
    root = Path(root)
    require_folder(root, "a folder of images")
    images: list[str] = []
    others: list[str] = []
    left: list[str] = []
    try:
        pending = [("", frozenset({_identity(str(root))}))]
        while pending:
            prefix, above = pending.pop()
            with os.scandir(root / prefix) as entries:
                for entry in entries:
                    name = prefix + entry.name
                    if is_passed_over(entry.name):
                        left += [name] if entry.name.lower() in LEFT_BY_TOOLS else []
                        continue
                    if entry.is_dir():
                        here = _identity(entry.path)
                        if here not in above:
                            pending.append((name + "/", above | {here}))
                    else:
                        (images if is_image_name(entry.name) else others).append(name)
    except OSError as error:
        raise DataError(f"{error.filename or root}: cannot be listed: {error.strerror}") from error
    if left:
        _say_once(root, tuple(sorted(left)))
    return FolderFiles(tuple(sorted(images, key=name_key)), tuple(others))


def list_images(root: str | Path) -> tuple[str, ...]:
    """Relative POSIX names of all images below ``root``, sorted by :func:`name_key`; see :func:`list_folder`.

    Raises :class:`DataError` if ``root`` is missing, unreadable or holds no image.
    """
    files = list_folder(root)
    if not files.images:
        found = f"; there are {passed_over(files.others)}" if passed_over(files.others) else ""
        raise DataError(f"{root}: no images here (looked for {', '.join(sorted(EXTENSIONS))}){found}")
    return files.images


NO_PICTURES = frozenset(
    {
        ".txt", ".xml", ".json", ".jsonl", ".ndjson", ".geojson", ".csv", ".tsv", ".md", ".rst", ".html", ".htm",
        ".css", ".js", ".yaml", ".yml", ".toml", ".ini", ".cfg", ".db", ".log", ".py", ".sh", ".lst", ".names", ".data",
        ".cls", ".md5", ".sha256", ".lock", ".license", ".m", ".idx", ".url",
    }
)  # fmt: skip
"""Extensions of files that lie beside images and are none: they are passed over without a word."""


def passed_over(others: Iterable[str]) -> str:
    """Count files that are no images by extension, such as ``2 .heic, 1 .pdf``; '' without any but texts.

    Files without an extension are counted as such, unless they are named as texts are (README, LICENSE).
    """
    endings = (os.path.splitext(name)[1].lower() or _bare(name) for name in others)
    counts = Counter(ending for ending in endings if ending and ending not in NO_PICTURES)
    return ", ".join(f"{count:,} {ending}" for ending, count in sorted(counts.items(), key=lambda one: (-one[1], one)))


def _bare(name: str) -> str:
    return "" if name.rpartition("/")[2].isupper() else "without extension"


def all_is_read(size: int) -> bool:
    """Whether files of ``size`` bytes together are known by every byte: up to 1 GiB, or by ``DINOSKIP_VERIFY_DATA=1``.

    Raises :class:`ConfigError` unless the variable is 0 or 1.
    """
    wanted = os.environ.get("DINOSKIP_VERIFY_DATA", "0")
    if wanted not in {"0", "1"}:
        raise ConfigError(f"DINOSKIP_VERIFY_DATA={wanted!r} is neither 0 nor 1")
    return wanted == "1" or size <= FULL_HASH_BYTES


def _sampled(path: Path, size: int) -> str:
    """The sha256 of up to three pieces of a file."""
    pieces = sorted({0, max(0, size // 2 - _SAMPLED_BYTES // 2), max(0, size - _SAMPLED_BYTES)})
    digest = hashlib.sha256()
    with open_regular(path) as stream:
        for start in pieces:
            stream.seek(start)
            digest.update(stream.read(_SAMPLED_BYTES))
    return digest.hexdigest()


def content_marks(paths: Sequence[Path]) -> list[Any]:
    """Return marks that tell these files from others: the sha256 of each (:func:`all_is_read`), else a sample.

    The sample: the size and time of every file in whole seconds, and of 1,024 files, evenly spread, the sha256 of up to
    3 × 64 KiB. Reading an ImageNet to start a run costs more than the protection is worth. Raises :class:`DataError`
    naming a file that cannot be read.
    """
    try:
        marks = [path.stat() for path in paths]
        special = next((path for path, mark in zip(paths, marks, strict=True) if not stat.S_ISREG(mark.st_mode)), None)
        if special is not None:
            raise DataError(f"{special}: is not a regular file")
        stated = pixel_range(next(iter(paths), None))  # what pixels mean, where it is set; keys without it stay
        added = "" if stated is None else f" in 0..{stated}"
        if all_is_read(sum(mark.st_size for mark in marks)):
            return [sha256_file(path) + added for path in paths]
        step = -(-len(paths) // SAMPLED_FILES)
        return [
            [mark.st_size, int(mark.st_mtime), ("" if at % step else _sampled(path, mark.st_size)) + added]
            for at, (path, mark) in enumerate(zip(paths, marks, strict=True))
        ]
    except OSError as error:
        raise DataError(f"{error.filename}: cannot be read: {error.strerror}") from error


def fingerprint(root: Path, names: Sequence[str]) -> str:
    """Return a hex sha256 of the NFC ``names`` in order and of what :func:`content_marks` says of the files.

    ``sampled-`` stands before it where that is a sample.
    """
    marks = content_marks([root / name for name in names])
    entries = [
        [nfc(name).encode("utf-8", "surrogateescape").hex(), mark] for name, mark in zip(names, marks, strict=True)
    ]
    return prefix_of(marks) + hash_of(entries)


_MARK_BYTES = 8  # one in 2^64 changes is missed; a million files take 8 MB


@dataclass(frozen=True)
class FilesAsRead:
    """Paths of files, joined by NUL, and eight bytes for each: a hash of its size and time when it was read."""

    paths: str
    marks: bytes

    @classmethod
    def of(cls, paths: Iterable[Path]) -> FilesAsRead:
        """Take the sizes and times of these files as they are now."""
        joined = "\0".join(map(str, paths))
        return cls(joined, _sizes_and_times(joined))

    def changed(self) -> list[str]:
        """Return the paths of files that were written, replaced or removed since, by size or time of modification."""
        now = _sizes_and_times(self.paths)
        if now == self.marks:
            return []
        places = range(0, len(now), _MARK_BYTES)
        same = [now[at : at + _MARK_BYTES] == self.marks[at : at + _MARK_BYTES] for at in places]
        return [path for path, kept in zip(self.paths.split("\0"), same, strict=True) if not kept]


def _sizes_and_times(joined: str) -> bytes:
    marks = bytearray()
    for path in joined.split("\0") if joined else ():
        try:
            status = os.stat(path)
            text = b"%d %d" % (status.st_size, status.st_mtime_ns)
        except OSError:
            text = b"gone"
        marks += hashlib.blake2b(text, digest_size=_MARK_BYTES).digest()
    return bytes(marks)


def prefix_of(marks: Sequence[Any]) -> str:
    """Return the prefix of a fingerprint of these marks: ``sampled-``, or nothing where every byte was read."""
    return SAMPLED if any(isinstance(mark, list) for mark in marks) else ""
