"""Folders with one sub-folder for each class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dinoskip.data.folders import ImageFolder
from dinoskip.data.listing import list_images, name_key
from dinoskip.data.recognise.words import name_both
from dinoskip.errors import DataError


@dataclass(frozen=True, eq=False)
class LabelledFolder(ImageFolder):
    """An image folder with a class number per image. ``labels`` is int64 (N,), into ``class_names``."""

    labels: np.ndarray
    class_names: tuple[str, ...]
    left_out: int = 0  # of the split, as broken

    @property
    def target_files(self) -> tuple[Path, ...]:
        """None: the class of an image is the folder it lies in."""
        return ()

    def part(self, chosen: Sequence[int]) -> LabelledFolder:
        """Return the images at these positions."""
        names = tuple(self.names[i] for i in chosen)
        return replace(self, names=names, labels=self.labels[list(chosen)])

    def labels_of(self, ids: Sequence[str]) -> np.ndarray:
        """Class numbers, int64 (n,), of the images with these ids; :class:`DataError` naming one that is not there."""
        place = {name: index for index, name in enumerate(self.names)}
        missing = next((name for name in ids if name not in place), None)
        if missing is not None:
            raise DataError(
                f"{self.root / missing}: is not there any more", "restore it, or run again to measure without it"
            )
        return np.asarray(self.labels[[place[name] for name in ids]])

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
        if len(folders) == 2 and name_both(folders):
            raise DataError(
                f"{root}: {folders[0]} and {folders[1]} are folders of photographs and of their labels, not of classes",
                "kind masks reads them",
            )
        classes = tuple(folders if class_names is None else class_names)
        unknown = [name for name in folders if name not in classes]
        if unknown:
            raise DataError(f"{root / unknown[0]}: not one of the {len(classes)} known classes")
        number = {name: index for index, name in enumerate(classes)}
        labels = np.array([number[name.partition("/")[0]] for name in names], dtype=np.int64)
        return cls(root, names, labels, classes)
