"""Kind ``masks``: a folder of one's own with images, mask PNGs of the same names and a list of classes."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from dinoskip.data.folders import ImageFolder
from dinoskip.data.listing import read_text
from dinoskip.data.segmentation import ClassMap, SegmentationDataset, class_map
from dinoskip.data.sets.kind import CheckedSplit, DatasetKind, TrainSubset
from dinoskip.data.sets.pairs import PairFolders, open_pairs
from dinoskip.errors import DataError


def read_classes(path: Path) -> tuple[str, ...]:
    """Class names of a list, one a line; :class:`DataError` if it is missing, empty, repeating or too long."""
    names = tuple(line.strip() for line in read_text(path, "list of classes").splitlines() if line.strip())
    if not names or len(set(names)) != len(names) or len(names) > 255:
        raise DataError(f"{path}: expected 1 to 255 different class names, one a line")
    return names


def numbered_classes(path: Path, first: int) -> ClassMap:
    """Read a list of classes: line i (from 0) names value ``first + i``; 255 and values below ``first`` are ignored.

    Errors as :func:`read_classes`.
    """
    names = read_classes(path)
    if first + len(names) > 255:
        raise DataError(f"{path}: {len(names)} classes from value {first} on do not fit below 255")
    return class_map(names, first, (*range(first), 255))


class MasksConfig(TrainSubset, DatasetKind):
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

    def _folders(self, root: Path, split: str) -> PairFolders:
        images, masks = (text.replace("{split}", split) for text in (self.images, self.masks))
        return PairFolders(root / images, root / masks)

    def open_images(self, root: Path, split: str) -> ImageFolder:
        """Open all images of a split, with a mask or not."""
        return ImageFolder.open(self._folders(root, split).images)

    def open_segmentation(self, root: Path, split: str, faults: list[str] | None) -> SegmentationDataset:
        """Open a split; train may be a subset."""
        classes = numbered_classes(root / self.classes, self.first_value)
        return self.subsample(open_pairs(self.dataset_name, split, self._folders(root, split), classes, faults=faults))

    def checked_splits(self, root: Path) -> list[CheckedSplit]:
        """Train and val; without ``{split}`` in the paths, everything once."""
        splits = ("train", "val") if "{split}" in self.images + self.masks else ("all",)
        return [CheckedSplit("segmentation", split) for split in splits]
