"""The names below a folder, as the rules of layouts ask for them."""

from __future__ import annotations

import posixpath
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from dinoskip.data.listing import list_folder
from dinoskip.errors import DataError
from dinoskip.io.files import open_regular

DEEPEST = 3
"""Folders between a root and a data set in it: what archives and download tools put around one."""
MOST_BASES = 500  # of an ImageNet with its thousand folders nothing begins in the last ones


@dataclass(frozen=True, eq=False)
class FolderTree:
    """Names of images and other files below ``root``, relative and POSIX, in the order of :func:`list_folder`."""

    root: Path
    images: tuple[str, ...]
    others: tuple[str, ...]

    @classmethod
    def read(cls, root: Path) -> FolderTree:
        """List a folder; :class:`DataError` if it is missing or unreadable."""
        return cls(root, *list_folder(root))

    @cached_property
    def images_in(self) -> dict[str, list[str]]:
        """Names of the images directly in each folder; folders without any are not in it."""
        return _by_folder(self.images)

    @cached_property
    def others_in(self) -> dict[str, list[str]]:
        """Names of the other files directly in each folder."""
        return _by_folder(self.others)

    @cached_property
    def folders(self) -> dict[str, list[str]]:
        """Every folder with a file somewhere below it, '' the root, and the names of its sub-folders, sorted."""
        inside: dict[str, set[str]] = defaultdict(set)
        for folder in {*self.images_in, *self.others_in, ""}:
            while folder:
                above, _, name = folder.rpartition("/")
                if name in inside[above]:
                    break
                inside[above].add(name)
                folder = above
        return {folder: sorted(inside[folder]) for folder in {"", *self.images_in, *self.others_in, *inside}}

    @cached_property
    def _other_names(self) -> frozenset[str]:
        return frozenset(self.others)

    @cached_property
    def image_names(self) -> frozenset[str]:
        """Names of all images."""
        return frozenset(self.images)

    def has(self, *parts: str) -> bool:
        """Whether there is such a folder, with a file in it, or such a file that is no image."""
        path = join(*parts)
        return path in self.folders or path in self._other_names

    def has_images(self, folder: str) -> bool:
        """Whether an image lies in a folder or in those in it."""
        return next(self.below(folder), None) is not None

    def text(self, name: str, length: int = 1 << 16) -> str:
        """The first bytes of a file as text; '' where it cannot be read. Only used to tell what a file is."""
        try:
            with open_regular(self.root / name) as stream:
                return stream.read(length).decode("utf-8-sig", "replace")
        except (OSError, DataError):
            return ""

    def names_in(self, folder: str) -> list[str]:
        """The last parts of the names of the files directly in a folder that are no images."""
        return [name.rpartition("/")[2] for name in self.others_in.get(folder, ())]

    def below(self, folder: str) -> Iterator[str]:
        """Names of the images in a folder and the folders in it."""
        for place, names in self.images_in.items():
            if lies_in(place, folder):
                yield from names

    @cached_property
    def bases(self) -> list[str]:
        """Folders in which a data set may begin, nearest to the root first: at most :data:`DEEPEST` below it.

        They have folders or files that are no images: in a folder of a class nothing begins.
        """
        near = [f for f, inside in self.folders.items() if depth(f) <= DEEPEST and (inside or f in self.others_in)]
        return sorted(near, key=lambda folder: (depth(folder), folder))[:MOST_BASES]


def _by_folder(names: tuple[str, ...]) -> dict[str, list[str]]:
    folders: dict[str, list[str]] = defaultdict(list)
    for name in names:
        folders[name.rpartition("/")[0]].append(name)
    return dict(folders)


def join(*parts: str) -> str:
    """Join parts of a relative path; '' is the root."""
    return "/".join(part for part in parts if part)


def depth(folder: str) -> int:
    """Number of folders from the root to a folder; 0 of the root."""
    return folder.count("/") + 1 if folder else 0


def lies_in(path: str, folder: str) -> bool:
    """Whether a path is a folder or lies in it."""
    return not folder or path == folder or path.startswith(f"{folder}/")


def stem_of(name: str) -> str:
    """The last part of a name without its extension."""
    return posixpath.splitext(name.rpartition("/")[2])[0]
