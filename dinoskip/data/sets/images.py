"""Kind ``images``: the photographs below any folder, no label needed."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from dinoskip.data.folders import ImageFolder
from dinoskip.data.photographs import open_photographs, photographs_below
from dinoskip.data.sets.kind import DatasetKind, splits_of
from dinoskip.data.shards import Source


class ImagesConfig(DatasetKind):
    """The photographs below any folder; label maps are left out (:mod:`dinoskip.data.recognise`)."""

    splits = splits_of("images", all=None)  # checked once
    kind: Literal["images"] = "images"
    root: str = Field(description="folder of images, searched with its sub-folders")
    everything: bool = Field(False, description="take every image, label maps too, and ask for no evidence")

    @property
    def dataset_name(self) -> str:
        return Path(self.root).name

    def open_images(self, root: Path, split: str) -> ImageFolder:
        """Open the photographs of the whole folder, whatever the split."""
        return photographs_below(root, everything=self.everything)

    def open_training_images(self, root: Path, split: str) -> Source:
        """Open the photographs of the folder, or tar shards in its place."""
        return open_photographs(root, everything=self.everything)
