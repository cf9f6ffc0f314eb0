"""Kind ``cityscapes``: the 19 classes of its evaluation, from ``labelIds`` or ``labelTrainIds`` masks."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field

from dinoskip.data.folders import ImageFolder
from dinoskip.data.listing import require_folder
from dinoskip.data.segmentation import IGNORE, ClassMap, class_map, words
from dinoskip.data.sets.kind import TrainSubset, splits_of
from dinoskip.data.sets.numberings import cityscapes_numbering
from dinoskip.data.sets.pairs import PairedMasks, PairFolders, known_split

CLASSES = words("""
road, sidewalk, building, wall, fence, pole, traffic light, traffic sign, vegetation, terrain, sky, person, rider, car,
truck, bus, train, motorcycle, bicycle
""")
LABEL_IDS = (7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33)
"""The values of those classes in ``labelIds`` masks, where 0 to 33 occur; all others are not scored."""


def _label_ids() -> ClassMap:
    """34 labels and 255, the licence plate's -1 in 8 bits."""
    table = class_map((), ignored=(*range(34), IGNORE)).table
    table[list(LABEL_IDS)] = np.arange(len(CLASSES))
    return ClassMap(CLASSES, table)


BY_ENDING = {"_gtFine_labelIds": _label_ids(), "_gtFine_labelTrainIds": class_map(CLASSES)}


class CityscapesConfig(TrainSubset, PairedMasks):
    """A folder with ``leftImg8bit`` and ``gtFine``, as unpacked from the two archives of these names."""

    splits = splits_of("segmentation", train=2_975, val=500)
    signatures = (cityscapes_numbering,)
    kind: Literal["cityscapes"] = "cityscapes"
    root: str = Field(description="folder with leftImg8bit and gtFine")

    def open_images(self, root: Path, split: str) -> ImageFolder:
        """Open all images of train, val or test."""
        known_split(self.kind, split, ("train", "val", "test"))
        return ImageFolder.open(root / "leftImg8bit" / split)

    def pair_folders(self, root: Path, split: str) -> PairFolders:
        """Return the folders of train or val; ``labelIds`` masks are taken where there are both."""
        known_split(self.kind, split, ("train", "val"))
        masks = root / "gtFine" / split
        require_folder(masks, "the masks of Cityscapes, of gtFine_trainvaltest.zip")
        ending = next((end for end in BY_ENDING if next(masks.glob(f"*/*{end}.png"), None)), "_gtFine_labelIds")
        return PairFolders(root / "leftImg8bit" / split, masks, "_leftImg8bit", ending)

    def class_map(self, root: Path, folders: PairFolders) -> ClassMap:
        return BY_ENDING[folders.mask_ending]
