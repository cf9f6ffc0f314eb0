"""Segmentation sets: an image, and a label map of the same size whose every value is checked when it is read."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dinoskip.data.classmaps import ILLEGAL, ClassMap, class_map
from dinoskip.data.voc import BACKGROUND, IGNORE, FileTable, class_names, present, read_list, voc_folder, voc_palette
from dinoskip.errors import DataError
from dinoskip.images import image_size, read_mask


@dataclass(frozen=True, eq=False)
class SegmentationDataset:
    """Images with label maps. ``class_names[v]`` names label value ``v``; value 255 is ignored everywhere.

    ``remap`` says what the values in the files mean; None: they are the class numbers. ``drawn`` says which
    part of the split this is, if it was drawn from it.
    """

    name: str
    split: str
    ids: tuple[str, ...]
    class_names: tuple[str, ...]
    image_paths: tuple[Path, ...]
    label_paths: tuple[Path, ...]
    palette: np.ndarray = field(default_factory=voc_palette)  # (256, 3) uint8
    ignore_index: int = IGNORE
    remap: ClassMap | None = None
    drawn: str = ""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def target_files(self) -> tuple[Path, ...]:
        """The files that hold what images are measured against."""
        return self.label_paths

    @property
    def list_name(self) -> str:
        """Which images these are, for a result row: ``trainaug``, or ``train, 3000 of 20210 by seed 0``."""
        return f"{self.split}, {self.drawn}" if self.drawn else self.split

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
        table = self._table
        counts = np.bincount(labels.ravel(), minlength=256)
        illegal = np.flatnonzero((counts > 0) & (table == ILLEGAL))
        if illegal.size:
            value = int(illegal[0])
            raise DataError(
                f"{path}: label value {value} ({int(counts[value])} pixels) is outside the {self.num_classes} classes "
                f"and not {self.ignore_index}"
            )
        return labels if self.remap is None else table.astype(np.uint8)[labels]

    @property
    def _table(self) -> np.ndarray:
        return (self.remap or class_map(self.class_names)).table


def voc_segmentation(
    root: str | Path, split: str, year: int = 2012, *, name: str | None = None, faults: list[str] | None = None
) -> SegmentationDataset:
    """Open a VOC segmentation set; ``root`` is the VOCdevkit or the ``VOC<year>`` folder.

    ``split`` names ``ImageSets/Segmentation/<split>.txt``: train (1,464 in VOC2012), val (1,449), trainval, or trainaug
    (10,582), whose masks are read from ``SegmentationClassAug`` instead of ``SegmentationClass``. Class 0 is
    background; the others are VOC's 20, or those of a ``classes.txt`` in the folder. Raises :class:`DataError` in one
    line for every missing folder, list, image or mask; with ``faults``, missing files are noted there and left out.
    """
    folder = voc_folder(root, year)
    images = FileTable.images(folder / "JPEGImages")
    masks = FileTable.of(folder / ("SegmentationClassAug" if split == "trainaug" else "SegmentationClass"), ".png")
    ids = present(read_list(folder, "Segmentation", split), [(images, ".jpg"), (masks, ".png")], faults)
    return SegmentationDataset(
        name=name or f"voc{year}",
        split=split,
        ids=ids,
        class_names=(BACKGROUND, *class_names(folder)),
        image_paths=images.paths(ids, ".jpg"),
        label_paths=masks.paths(ids, ".png"),
    )
