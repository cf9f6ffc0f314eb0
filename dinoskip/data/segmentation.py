"""Segmentation sets: an image, and a label map of the same size whose every value is checked when it is read."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dinoskip.data.voc import BACKGROUND, IGNORE, FileTable, class_names, read_list, voc_folder, voc_palette
from dinoskip.errors import DataError
from dinoskip.images import image_size, read_mask


@dataclass(frozen=True, eq=False)
class SegmentationDataset:
    """Images with label maps. ``class_names[v]`` names label value ``v``; value 255 is ignored everywhere."""

    name: str
    split: str
    ids: tuple[str, ...]
    class_names: tuple[str, ...]
    image_paths: tuple[Path, ...]
    label_paths: tuple[Path, ...]
    palette: np.ndarray = field(default_factory=voc_palette)  # (256, 3) uint8
    ignore_index: int = IGNORE

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def num_classes(self) -> int:
        """Number of classes, background included where the set has one."""
        return len(self.class_names)

    def path(self, index: int) -> Path:
        """Where image ``index`` lies."""
        return self.image_paths[index]

    def label(self, index: int) -> np.ndarray:
        """Return the label map of image ``index``, uint8 (H, W), values < ``num_classes`` or 255.

        Raises :class:`DataError` naming the mask if it is damaged, is not as large as its image or holds another value.
        """
        path = self.label_paths[index]
        labels = read_mask(path)
        expected = image_size(self.image_paths[index])
        if labels.shape != expected:
            height, width = labels.shape
            raise DataError(
                f"{path}: mask is {width}×{height} pixels, its image {self.image_paths[index].name} "
                f"{expected[1]}×{expected[0]}"
            )
        counts = np.bincount(labels.ravel(), minlength=256)
        counts[self.ignore_index] = 0
        outside = np.flatnonzero(counts[self.num_classes :])
        if outside.size:
            value = int(outside[0]) + self.num_classes
            raise DataError(
                f"{path}: label value {value} ({int(counts[value])} pixels) is outside the {self.num_classes} classes "
                f"and not {self.ignore_index}"
            )
        return labels


def voc_segmentation(root: str | Path, split: str, year: int = 2012, *, name: str | None = None) -> SegmentationDataset:
    """Open a VOC segmentation set; ``root`` is the VOCdevkit or the ``VOC<year>`` folder.

    ``split`` names ``ImageSets/Segmentation/<split>.txt``: train (1,464 in VOC2012), val (1,449), trainval, or trainaug
    (10,582), whose masks are read from ``SegmentationClassAug`` instead of ``SegmentationClass``. Class 0 is
    background; the others are VOC's 20, or those of a ``classes.txt`` in the folder. Raises :class:`DataError` in one
    line for every missing folder, list, image or mask.
    """
    folder = voc_folder(root, year)
    ids = read_list(folder, "Segmentation", split)
    masks = "SegmentationClassAug" if split == "trainaug" else "SegmentationClass"
    return SegmentationDataset(
        name=name or f"voc{year}",
        split=split,
        ids=ids,
        class_names=(BACKGROUND, *class_names(folder)),
        image_paths=FileTable.images(folder / "JPEGImages").paths(ids, ".jpg"),
        label_paths=FileTable.of(folder / masks, ".png").paths(ids, ".png"),
    )
