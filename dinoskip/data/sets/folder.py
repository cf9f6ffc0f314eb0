"""Kind ``folder``: one sub-folder per class below ``train`` and ``val``, the ImageNet layout."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from dinoskip.data.folders import ImageFolder
from dinoskip.data.labelled_folder import LabelledFolder
from dinoskip.data.sets.kind import DatasetKind, splits_of
from dinoskip.data.shards import Source, open_source
from dinoskip.data.splits import split_path
from dinoskip.errors import DataError


class FolderConfig(DatasetKind):
    """A folder with ``train`` and ``val``, each with one sub-folder per class (the ImageNet layout).

    Splits may have other usual names, such as ``valid`` (:mod:`dinoskip.data.splits`).
    """

    splits = splits_of("classes", train=None, val=None)
    kind: Literal["folder"] = "folder"
    root: str = Field(description="folder with train and val, each with a folder per class")

    @property
    def dataset_name(self) -> str:
        return Path(self.root).name

    def open_images(self, root: Path, split: str) -> ImageFolder:
        return ImageFolder.open(split_path(root, "{split}", split))

    def open_training_images(self, root: Path, split: str) -> Source:
        """Open the split's sub-folder, or tar shards in its place."""
        return open_source(split_path(root, "{split}", split))

    def open_labelled(self, root: Path, split: str, faults: list[str] | None) -> LabelledFolder:
        """Open a split; the classes are those of ``train``, whatever split is opened."""
        of_train = split_path(root, "{split}", "train")
        if not of_train.exists() and (any(root.glob("VOC2*")) or (root / "JPEGImages").is_dir()):
            raise DataError(f"{root}: has no folder train, it is laid out as Pascal VOC", "use kind voc")
        if not of_train.is_dir():
            raise DataError(
                f"{root}: has no folder train, whose folders are the classes",
                f"expected {root}/train/CLASS/IMAGE.jpg and {root}/val/CLASS/IMAGE.jpg, the same classes in both",
            )
        train = LabelledFolder.open(of_train)
        if split == "train":
            return train
        return LabelledFolder.open(split_path(root, "{split}", split), train.class_names)
