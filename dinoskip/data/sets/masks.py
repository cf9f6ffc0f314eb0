"""Kind ``masks``: a folder of one's own with images, mask PNGs of the same names and a list of classes."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from dinoskip.data.listing import read_text
from dinoskip.data.segmentation import ClassMap, class_map
from dinoskip.data.sets.kind import CheckedSplit, TrainSubset
from dinoskip.data.sets.pairs import PairedMasks, PairFolders
from dinoskip.data.splits import split_path
from dinoskip.errors import DataError


def read_classes(path: Path) -> tuple[str, ...]:
    """Class names of a list, one a line; :class:`DataError` if it is missing, empty, repeating or too long."""
    names = tuple(line.strip() for line in read_text(path, "list of classes").splitlines() if line.strip())
    if not names or len(set(names)) != len(names) or len(names) > 255:
        raise DataError(f"{path}: expected 1 to 255 different class names, one a line")
    return names


class MasksConfig(TrainSubset, PairedMasks):
    """A folder of images and one of mask PNGs of the same names, with a list of classes. Paths are relative to root.

    ``{split}`` in a path stands for the split. Line i of ``classes`` (from 0) names value ``first_value + i``.
    """

    kind: Literal["masks"] = "masks"
    root: str = Field(description="folder that the paths below are relative to")
    images: str = Field("images/{split}", description="folder of images; {split} stands for the split")
    masks: str = Field("masks/{split}", description="folder of mask PNGs; {split} stands for the split")
    classes: str = Field("classes.txt", description="file with a class name a line")
    first_value: int = Field(0, ge=0, le=254, description="mask value of the first class")

    @property
    def dataset_name(self) -> str:
        return Path(self.root).name

    def pair_folders(self, root: Path, split: str) -> PairFolders:
        """Return the folders of a split."""
        return PairFolders(split_path(root, self.images, split), split_path(root, self.masks, split))

    def class_map(self, root: Path, folders: PairFolders) -> ClassMap:
        """Read the list of classes: 255 and values below ``first_value`` are ignored; errors as :func:`read_classes`.

        Raises :class:`DataError` for more than fit below 255.
        """
        path, first = root / self.classes, self.first_value
        names = read_classes(path)
        if first + len(names) > 255:
            raise DataError(f"{path}: {len(names)} classes from value {first} on do not fit below 255")
        return class_map(names, first, (*range(first), 255))

    def checked_splits(self, root: Path) -> list[CheckedSplit]:
        """Train and val; without ``{split}`` in the paths, everything once."""
        splits = ("train", "val") if "{split}" in self.images + self.masks else ("all",)
        return [CheckedSplit("segmentation", split) for split in splits]
