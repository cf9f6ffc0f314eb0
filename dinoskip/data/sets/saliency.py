"""Kinds ``ecssd``, ``duts_te`` and ``dut_omron``: images with a mask of the one object that stands out.

Every value but 0 is the object. Image and mask folders are found by the names that their authors gave them, and by
``img`` and ``gt``, as TokenCut's script has them.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from dinoskip.data.label_values import LabelValues
from dinoskip.data.listing import require_folder
from dinoskip.data.segmentation import BACKGROUND, ClassMap
from dinoskip.data.sets.kind import splits_of
from dinoskip.data.sets.pairs import PairedMasks, PairFolders, known_split
from dinoskip.data.sets.signatures import Finding
from dinoskip.errors import DataError

CLASSES = ClassMap((BACKGROUND, "object"), np.minimum(np.arange(256), 1).astype(np.int16))
SPLIT = "test"


# Files, and the share of the pixels that objects have. In tens of VOC's masks, of all objects, it is .53 at most; with
# object and background swapped it is larger than .6 in 96 % of tens, in 99 % of twenties.
_ENOUGH, _MOST = 10, 0.6


def object_is_rest(values: LabelValues) -> Finding | None:
    """Objects that have most of the pixels, as the background has."""
    total = sum(values.pixels)
    share = 1 - values.pixels[0] / max(total, 1)
    if values.read - values.unreadable < _ENOUGH or share <= _MOST or len(values.classes) < 2:
        return None
    text = f"the object has {100 * share:.0f} % of the pixels, of published sets about a quarter"
    return Finding("object-is-rest", "doubtful", text, "see whether 0 is the object: invert the masks")


class SaliencyKind(PairedMasks):
    """Base of the three saliency sets: one split, ``test``, in a folder of images and one of masks."""

    signatures = (object_is_rest,)
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
