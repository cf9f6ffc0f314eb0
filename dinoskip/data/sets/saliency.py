"""Kinds ``ecssd``, ``duts_te`` and ``dut_omron``: images with a mask of the one object that stands out.

Every value but 0 is the object. Image and mask folders are found by the names that their authors gave them, and by
``img`` and ``gt``, as TokenCut's script has them.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from dinoskip.data.listing import require_folder
from dinoskip.data.segmentation import BACKGROUND, ClassMap
from dinoskip.data.sets.kind import splits_of
from dinoskip.data.sets.pairs import PairedMasks, PairFolders, known_split
from dinoskip.errors import DataError

CLASSES = ClassMap((BACKGROUND, "object"), np.minimum(np.arange(256), 1).astype(np.int16))
SPLIT = "test"


class SaliencyKind(PairedMasks):
    """What the three sets share: one split, ``test``, in a folder of images and one of masks."""

    root: str = Field(description="folder with the images and masks, or the one that holds it")
    folders: ClassVar[tuple[tuple[str, str], ...]]

    def pair_folders(self, root: Path, split: str) -> PairFolders:
        """Return the folders of images and masks below ``root`` or below one folder in it."""
        known_split(self.dataset_name, split, (SPLIT,))
        require_folder(root, self.dataset_name)
        for base in (root, *sorted(entry for entry in root.iterdir() if entry.is_dir())):
            for images, masks in (*self.folders, ("img", "gt")):
                if (base / images).is_dir() and (base / masks).is_dir():
                    return PairFolders(base / images, base / masks)
        wanted = " or ".join(f"{images}/ and {masks}/" for images, masks in (*self.folders, ("img", "gt")))
        raise DataError(f"{root}: expected {self.dataset_name}: {wanted}")

    def class_map(self, root: Path, folders: PairFolders) -> ClassMap:
        """Class 0 is the background, class 1 the object."""
        return CLASSES


class EcssdConfig(SaliencyKind):
    """ECSSD (Shi et al. 2016): 1,000 images."""

    kind: Literal["ecssd"] = "ecssd"
    folders: ClassVar = (("images", "ground_truth_mask"),)
    splits = splits_of("segmentation", test=1_000)


class DutsTeConfig(SaliencyKind):
    """The test part of DUTS (Wang et al. 2017): 5,019 images."""

    kind: Literal["duts_te"] = "duts_te"
    folders: ClassVar = (("DUTS-TE-Image", "DUTS-TE-Mask"),)
    splits = splits_of("segmentation", test=5_019)


class DutOmronConfig(SaliencyKind):
    """DUT-OMRON (Yang et al. 2013): 5,168 images."""

    kind: Literal["dut_omron"] = "dut_omron"
    folders: ClassVar = (("DUT-OMRON-image", "pixelwiseGT-new-PNG"),)
    splits = splits_of("segmentation", test=5_168)
