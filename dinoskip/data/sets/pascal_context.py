"""Kind ``pascal_context``: VOC2010's photographs with 59 classes and a background, converted as mmsegmentation does."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from dinoskip.data.folders import ImageFolder
from dinoskip.data.label_values import LabelValues
from dinoskip.data.segmentation import BACKGROUND, IGNORE, SegmentationDataset, class_map, words
from dinoskip.data.sets.kind import DatasetKind, TrainSubset, as_text, splits_of
from dinoskip.data.sets.signatures import Finding
from dinoskip.data.sets.voc import listed_images, read_list, voc_folder, with_files

CLASSES = words("""
aeroplane, bag, bed, bedclothes, bench, bicycle, bird, boat, book, bottle, building, bus, cabinet, car, cat, ceiling,
chair, cloth, computer, cow, cup, curtain, dog, door, fence, floor, flower, food, grass, ground, horse, keyboard, light,
motorbike, mountain, mouse, person, plate, platform, pottedplant, road, rock, sheep, shelves, sidewalk, sign, sky, snow,
sofa, table, track, train, tree, truck, tvmonitor, wall, water, window, wood
""")
MAPS = {"59": class_map(CLASSES, first=1, ignored=(0, IGNORE)), "60": class_map((BACKGROUND, *CLASSES))}
"""``59``: the background is not scored. ``60``: it is class 0."""


_FEW = 5  # masks below which other pixels may be in none by chance


def context_numbering(values: LabelValues) -> Finding | None:
    """Masks less one: the conversion of mmsegmentation writes 0 (other) and 1..59."""
    held = set(values.values)
    if IGNORE in held and len(CLASSES) not in held:
        text = f"255 occurs, which mmsegmentation does not write, and {len(CLASSES)} does not: they may be less by one"
        return Finding("context-numbering", "doubtful", text, "convert the published annotations again")
    if values.read >= _FEW and held and 0 not in held:
        text = f"0 (other) occurs in none of {values.read} masks, in converted ones in nearly all"
        return Finding("context-numbering", "doubtful", text, "see whether class numbers were changed")
    return None


class PascalContextConfig(TrainSubset, DatasetKind):
    """A VOCdevkit (or its VOC2010 folder) with SegmentationClassContext and ImageSets/SegmentationContext."""

    # as mmsegmentation converts them; the published lists have 4,998 and 5,105
    splits = splits_of("segmentation", train=4_996, val=5_104)
    signatures = (context_numbering,)
    kind: Literal["pascal_context"] = "pascal_context"
    root: str = Field(description="VOCdevkit, or its VOC2010 folder")
    classes: Annotated[Literal["59", "60"], BeforeValidator(as_text)] = Field(
        "59", description="59 classes, or 60 with the background"
    )

    @property
    def dataset_name(self) -> str:
        return f"pascal_context{self.classes}"

    def open_images(self, root: Path, split: str) -> ImageFolder:
        """Open the images of a split."""
        return listed_images(voc_folder(root, 2010), "SegmentationContext", split)

    def open_segmentation(self, root: Path, split: str, faults: list[str] | None) -> SegmentationDataset:
        """Open train or val; train may be a subset."""
        folder, classes = voc_folder(root, 2010), MAPS[self.classes]
        listed, masks = read_list(folder, "SegmentationContext", split), folder / "SegmentationClassContext"
        ids, images, labels = with_files(listed, folder / "JPEGImages", masks, ".png", faults)
        return self.subsample(
            SegmentationDataset(
                self.dataset_name, split, ids, images, labels, classes.palette, classes, class_names=classes.names
            )
        )
