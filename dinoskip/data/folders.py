"""Folders of images: the same list, in the same order, on every machine and mount.

Names are sorted by the UTF-8 bytes of their NFC form, so that neither the file system's order, nor the locale,
nor the Unicode form it stores names in, changes which image is number 17.
"""

from __future__ import annotations

import os
import stat
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dinoskip.errors import DataError, guard
from dinoskip.files import hash_of, read_regular, sha256_file
from dinoskip.images import EXTENSIONS, image_size, read_encoded, read_image

FULL_HASH_BYTES = 1 << 30
MAX_TEXT = 64 << 20  # bytes of a list


def nfc(name: str) -> str:
    """Return a file name in Unicode NFC, so that it is the same whichever system stored it."""
    return unicodedata.normalize("NFC", name)


def name_key(name: str) -> tuple[bytes, bytes]:
    """Sort key of a file name: its NFC UTF-8 bytes, then the bytes as stored (to separate NFC from NFD twins)."""
    return nfc(name).encode("utf-8", "surrogateescape"), name.encode("utf-8", "surrogateescape")


def is_image_name(name: str) -> bool:
    """Whether a file of this name is listed as an image: a known extension, and not hidden (``._`` files are)."""
    return not name.startswith(".") and os.path.splitext(name)[1].lower() in EXTENSIONS


def require_folder(root: Path, expected: str) -> None:
    """Raise :class:`DataError` saying what was ``expected`` unless ``root`` is a readable folder."""
    if not root.exists():
        raise DataError(f"{root}: no such folder: expected {expected}")
    if not root.is_dir():
        raise DataError(f"{root}: is not a folder: expected {expected}")


def read_text(path: Path, what: str) -> str:
    """Read a list in UTF-8, at most 64 MiB; ``what`` it is, for messages. Raises :class:`DataError`."""
    with guard(path, what):
        return read_regular(path, MAX_TEXT).decode("utf-8")


def _identity(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_dev, status.st_ino


def list_images(root: str | Path) -> tuple[str, ...]:
    """Relative POSIX names of all images below ``root``, sorted by :func:`name_key`.

    Sub-folders are entered, linked ones too unless the link leads back to a folder on the way to it. Hidden files,
    ``._`` files, hidden folders and files without an extension of :data:`dinoskip.images.EXTENSIONS` are passed over.
    Raises :class:`DataError` if ``root`` is missing, unreadable or holds no image.
    """
    root = Path(root)
    require_folder(root, "a folder of images")
    names: list[str] = []
    try:
        pending = [("", frozenset({_identity(str(root))}))]
        while pending:
            prefix, above = pending.pop()
            with os.scandir(root / prefix) as entries:
                for entry in entries:
                    name = prefix + entry.name
                    if entry.name.startswith("."):
                        continue
                    if entry.is_dir():
                        here = _identity(entry.path)
                        if here not in above:
                            pending.append((name + "/", above | {here}))
                    elif is_image_name(entry.name):
                        names.append(name)
    except OSError as error:
        raise DataError(f"{error.filename or root}: cannot be listed: {error.strerror}") from error
    if not names:
        raise DataError(f"{root}: no images here (looked for {', '.join(sorted(EXTENSIONS))})")
    return tuple(sorted(names, key=name_key))


def content_marks(paths: Sequence[Path]) -> list[str | int]:
    """What tells these files from others: the sha256 of each while they hold at most 1 GiB together, else their sizes.

    Reading an ImageNet to start a run costs more than the protection is worth. Raises :class:`DataError` naming a file
    that cannot be read.
    """
    try:
        marks = [path.stat() for path in paths]
        special = next((path for path, mark in zip(paths, marks, strict=True) if not stat.S_ISREG(mark.st_mode)), None)
        if special is not None:
            raise DataError(f"{special}: is not a regular file")
        sizes = [mark.st_size for mark in marks]
        return [sha256_file(path) for path in paths] if sum(sizes) <= FULL_HASH_BYTES else [*sizes]
    except OSError as error:
        raise DataError(f"{error.filename}: cannot be read: {error.strerror}") from error


def fingerprint(root: Path, names: Sequence[str]) -> str:
    """Return a hex sha256 of the NFC ``names`` in order and of what :func:`content_marks` says of the files."""
    marks = content_marks([root / name for name in names])
    entries = [
        [nfc(name).encode("utf-8", "surrogateescape").hex(), mark] for name, mark in zip(names, marks, strict=True)
    ]
    return hash_of(entries)


@dataclass(frozen=True)
class ImageFolder:
    """Images below one folder. ``names`` are relative POSIX names and serve as ids."""

    root: Path
    names: tuple[str, ...]

    @classmethod
    def open(cls, root: str | Path) -> ImageFolder:
        """List the folder; :class:`DataError` if it is missing or holds no image."""
        return cls(Path(root), list_images(root))

    @property
    def record(self) -> dict[str, Any]:
        """What a run notes of changed pixels: nothing, they are as they were."""
        return {}

    @property
    def ids(self) -> tuple[str, ...]:
        """One id per image: its relative name."""
        return self.names

    def __len__(self) -> int:
        return len(self.names)

    def path(self, index: int) -> Path:
        """Where image ``index`` lies."""
        return self.root / self.names[index]

    def where(self, index: int) -> str:
        """Say where image ``index`` lies, for messages."""
        return str(self.path(index))

    def encoded(self, index: int) -> bytes:
        """Return the bytes of image ``index``; :class:`DataError` if they cannot be read."""
        return read_encoded(self.path(index))

    def read(self, index: int) -> np.ndarray:
        """Decode image ``index`` to uint8 (H, W, 3); :class:`DataError` if it cannot be."""
        return read_image(self.path(index))

    def size(self, index: int) -> tuple[int, int]:
        """Return its height and width from its header alone; :class:`DataError` if it cannot be read."""
        return image_size(self.path(index))

    def fingerprint(self) -> str:
        """Hex sha256 of the set, see :func:`fingerprint`."""
        return fingerprint(self.root, self.names)


@dataclass(frozen=True, eq=False)
class LabelledFolder(ImageFolder):
    """An image folder with a class number per image. ``labels`` is int64 (N,), into ``class_names``."""

    labels: np.ndarray
    class_names: tuple[str, ...]

    def part(self, chosen: Sequence[int]) -> LabelledFolder:
        """Return the images at these positions."""
        names = tuple(self.names[i] for i in chosen)
        return LabelledFolder(self.root, names, self.labels[list(chosen)], self.class_names)

    @classmethod
    def open(cls, root: str | Path, class_names: Sequence[str] | None = None) -> LabelledFolder:
        """Open a folder with one sub-folder per class; the caller chooses ``root/train`` or ``root/val``.

        Classes are the sub-folders in sorted order, or ``class_names`` (those of the training split, so that a split
        without one class keeps the numbers). Raises :class:`DataError` for a missing folder, images that lie
        outside a class folder, or a class folder that is not in ``class_names``.
        """
        root = Path(root)
        names = list_images(root)
        loose = [name for name in names if "/" not in name]
        if loose:
            raise DataError(f"{root / loose[0]}: lies outside a class folder", "expected one sub-folder per class")
        folders = sorted({name.partition("/")[0] for name in names}, key=name_key)
        classes = tuple(folders if class_names is None else class_names)
        unknown = [name for name in folders if name not in classes]
        if unknown:
            raise DataError(f"{root / unknown[0]}: not one of the {len(classes)} known classes")
        number = {name: index for index, name in enumerate(classes)}
        labels = np.array([number[name.partition("/")[0]] for name in names], dtype=np.int64)
        return cls(root, names, labels, classes)
