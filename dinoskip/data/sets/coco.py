"""Kind ``coco``: boxes and outlines of COCO 2017, or of data laid out alike: a JSON and a folder of images a split."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from dinoskip.data.detection import DetectionDataset
from dinoskip.data.folders import ImageFolder
from dinoskip.data.listing import require_folder
from dinoskip.data.sets.coco_json import coco_json, images_below
from dinoskip.data.sets.kind import Archives, CheckedSplit, DatasetKind, Published
from dinoskip.data.sets.pairs import COCO_2017, COCO_SITE
from dinoskip.data.splits import split_path

_SIZES = {"train": 118_287, "val": 5_000}  # images of 2017, as published
_INSTANCES = "annotations/instances_{split}2017.json"


class CocoConfig(DatasetKind):
    """Boxes and outlines of COCO 2017, or of a folder laid out alike. ``{split}`` stands for the split's name."""

    archives = Archives(
        published=(
            *COCO_2017,
            Published(
                f"{COCO_SITE}/annotations/annotations_trainval2017.zip",
                tuple(_INSTANCES.replace("{split}", split) for split in _SIZES),
                "f4bbac642086de4f52a3fdda2de5fa2c",
            ),
        ),
    )

    kind: Literal["coco"] = "coco"
    root: str = Field(description="COCO folder with train2017, val2017 and annotations")
    images: str = Field("{split}2017", description="folder of a split's images, relative to root (or root/images)")
    annotations: str = Field(_INSTANCES, description="JSON of a split, relative to root")

    @property
    def dataset_name(self) -> str:
        return "coco2017" if self.annotations == _INSTANCES else Path(self.root).name

    def open_images(self, root: Path, split: str) -> ImageFolder:
        """Open the images that the split's JSON names."""
        return images_below(root, self.open_detection(root, split, None))

    def open_detection(self, root: Path, split: str, faults: list[str] | None) -> DetectionDataset:
        require_folder(root, "a COCO folder")
        folder, path = (split_path(root, template, split) for template in (self.images, self.annotations))
        if not folder.is_dir():
            folder = split_path(root / "images", self.images, split)
        return coco_json(path, folder, name=self.dataset_name, split=split, faults=faults)

    def checked_splits(self, root: Path) -> list[CheckedSplit]:
        """train and val, with the published numbers where the names are COCO's."""
        known = self.annotations == _INSTANCES
        return [CheckedSplit("detection", split, count if known else None) for split, count in _SIZES.items()]
