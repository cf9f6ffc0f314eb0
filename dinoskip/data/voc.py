"""The PASCAL VOC folder layout: where things lie, which ids a list names, and a plain sentence for what is missing."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dinoskip.data.folders import is_image_name, require_folder
from dinoskip.errors import DataError

CLASSES_FILE = "classes.txt"
BACKGROUND = "background"
IGNORE = 255  # the label of pixels that are not scored
VOC_CLASSES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable", "dog",
    "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)  # fmt: skip


def voc_palette() -> np.ndarray:
    """Return the VOC colour map, uint8 (256, 3): the bits of the label spread over the channels' high bits."""
    labels = np.arange(256)
    palette = np.zeros((256, 3), dtype=np.int64)
    for bit in range(8):
        for channel in range(3):
            palette[:, channel] |= ((labels >> (3 * bit + channel)) & 1) << (7 - bit)
    return palette.astype(np.uint8)


def voc_folder(root: str | Path, year: int) -> Path:
    """Find the ``VOC<year>`` folder: ``root`` may be it, a VOCdevkit that holds it, or the folder above VOCdevkit.

    Raises :class:`DataError` if none of them has ``JPEGImages`` and ``ImageSets``.
    """
    root = Path(root)
    require_folder(root, f"a VOCdevkit or VOC{year} folder")
    candidates = [root / f"VOC{year}", root / "VOCdevkit" / f"VOC{year}"]
    if root.name == f"VOC{year}" or not root.name.startswith("VOC2"):
        candidates.insert(0, root)
    for candidate in candidates:
        if (candidate / "JPEGImages").is_dir() and (candidate / "ImageSets").is_dir():
            return candidate
    raise DataError(f"{root}: no VOC{year} here: expected VOC{year}/JPEGImages and VOC{year}/ImageSets in it")


def class_names(folder: Path) -> tuple[str, ...]:
    """Object class names (background not among them): those of ``classes.txt`` if the folder has one, else VOC's 20.

    Raises :class:`DataError` for an empty or repeating ``classes.txt``.
    """
    path = folder / CLASSES_FILE
    if not path.exists():
        return VOC_CLASSES
    names = tuple(line.strip() for line in _text(path).splitlines() if line.strip())
    if not names or len(set(names)) != len(names) or BACKGROUND in names or len(names) > 254:
        raise DataError(f"{path}: expected 1 to 254 different class names, one a line, without {BACKGROUND!r}")
    return names


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as text: {error}") from error


def read_list(folder: Path, kind: str, split: str) -> tuple[str, ...]:
    """Read ``ImageSets/<kind>/<split>.txt``: the first word of every line is an id.

    Raises :class:`DataError` if the list is missing (naming those that are there), empty or repeats an id.
    """
    path = folder / "ImageSets" / kind / f"{split}.txt"
    if not path.is_file():
        there = sorted(p.stem for p in path.parent.glob("*.txt") if "_" not in p.stem) if path.parent.is_dir() else []
        hint = f"there are {', '.join(there)}" if there else f"{path.parent} has no lists"
        raise DataError(f"{path}: no such image list for split {split!r}", hint)
    ids = tuple(line.split()[0] for line in _text(path).splitlines() if line.strip())
    if not ids:
        raise DataError(f"{path}: the image list is empty")
    if len(set(ids)) != len(ids):
        repeated = next(name for position, name in enumerate(ids) if name in ids[:position])
        raise DataError(f"{path}: {repeated!r} is listed twice")
    return ids


@dataclass(frozen=True)
class FileTable:
    """The files of one folder by stem."""

    folder: Path
    files: Mapping[str, str]

    @classmethod
    def images(cls, folder: Path) -> FileTable:
        """All images in ``folder``; where two differ in extension only, the ``.jpg`` one."""
        names = sorted((n for n in _listing(folder) if is_image_name(n)), key=lambda n: (n.endswith(".jpg"), n))
        return cls(folder, {os.path.splitext(name)[0]: name for name in names})

    @classmethod
    def of(cls, folder: Path, extension: str) -> FileTable:
        """All files of ``folder`` that end in ``extension``."""
        return cls(folder, {n.removesuffix(extension): n for n in _listing(folder) if n.endswith(extension)})

    def paths(self, ids: Sequence[str], expected: str) -> tuple[Path, ...]:
        """One path per id; :class:`DataError` naming the first id without a file and counting them all."""
        missing = self.missing(ids)
        if missing:
            more = f" (and {len(missing) - 1} more of {len(ids)})" if len(missing) > 1 else ""
            raise DataError(f"{self.folder / missing[0]}{expected}: missing, but the image list names it{more}")
        return tuple(self.folder / self.files[name] for name in ids)

    def missing(self, ids: Sequence[str]) -> list[str]:
        """Return the ids without a file."""
        return [name for name in ids if name not in self.files]


def present(ids: tuple[str, ...], tables: Sequence[tuple[FileTable, str]], faults: list[str] | None) -> tuple[str, ...]:
    """Return the ids that have a file in every table, the others noted in ``faults``; all ids if ``faults`` is None.

    ``tables`` come with the extension that is expected in them, for the messages.
    """
    if faults is None:
        return ids
    lost: set[str] = set()
    for table, expected in tables:
        missing = table.missing(ids)
        lost.update(missing)
        faults += [f"{table.folder / name}{expected}: missing, but the image list names it" for name in missing]
    return tuple(name for name in ids if name not in lost)


def _listing(folder: Path) -> list[str]:
    require_folder(folder, "a folder of the VOC layout")
    try:
        return os.listdir(folder)
    except OSError as error:
        raise DataError(f"{folder}: cannot be listed: {error.strerror}") from error
