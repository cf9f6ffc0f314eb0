"""Kind ``images``: any folder of images, no label needed."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from dinoskip.data.folders import ImageFolder
from dinoskip.data.sets.kind import DatasetKind, splits_of
from dinoskip.data.shards import Source, open_source


class ImagesConfig(DatasetKind):
    """Any folder of images, searched with its sub-folders; no label needed."""

    splits = splits_of("images", all=None)  # checked once
    kind: Literal["images"] = "images"
    root: str = Field(description="folder of images, searched with its sub-folders")

    @property
    def dataset_name(self) -> str:
        return Path(self.root).name

    def open_images(self, root: Path, split: str) -> ImageFolder:
        """Open the whole folder, whatever the split."""
        return ImageFolder.open(root)

    def open_training_images(self, root: Path, split: str) -> Source:
        """Open the folder, or tar shards in its place."""
        return open_source(root)
