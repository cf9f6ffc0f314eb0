"""Kind ``coco_stuff``: the pixel maps of COCO 2017 in four sets of classes.

COCO-Stuff has 182 labels: 91 things, of which 11 never occur, and 91 stuff. Its coarse sets are its supercategories,
numbered as in the literature on unsupervised segmentation (PiCIE, STEGO): 12 of things, then 15 of stuff.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import BeforeValidator, Field

from dinoskip.data.label_values import LabelValues
from dinoskip.data.segmentation import IGNORE, ILLEGAL, ClassMap, class_map, words
from dinoskip.data.sets.kind import Archives, Published, TrainSubset, as_text, splits_of
from dinoskip.data.sets.numberings import best_shift, coco_stuff_numbering
from dinoskip.data.sets.pairs import COCO_2017, PairedMasks, PairFolders, coco_images, known_split
from dinoskip.data.sets.signatures import Finding

StuffClasses = Literal["171", "182", "27", "15"]

# Supercategories in the order of their coarse number, each with its labels; things have consecutive values.
_THINGS = {
    "electronic": "tv, laptop, mouse, remote, keyboard, cell phone",
    "appliance": "microwave, oven, toaster, sink, refrigerator, blender",
    "food": "banana, apple, sandwich, orange, broccoli, carrot, hot dog, pizza, donut, cake",
    "furniture": "chair, couch, potted plant, bed, mirror, dining table, window, desk, toilet, door",
    "indoor": "book, clock, vase, scissors, teddy bear, hair drier, toothbrush, hair brush",
    "kitchen": "bottle, plate, wine glass, cup, fork, knife, spoon, bowl",
    "accessory": "hat, backpack, umbrella, shoe, eye glasses, handbag, tie, suitcase",
    "animal": "bird, cat, dog, horse, sheep, cow, elephant, bear, zebra, giraffe",
    "outdoor": "traffic light, fire hydrant, street sign, stop sign, parking meter, bench",
    "person": "person",
    "sports": "frisbee, skis, snowboard, sports ball, kite, baseball bat, baseball glove, skateboard, surfboard, "
    "tennis racket",
    "vehicle": "bicycle, car, motorcycle, airplane, bus, train, truck, boat",
}
_STUFF = {
    "ceiling": "ceiling-other, ceiling-tile",
    "floor": "carpet, floor-marble, floor-other, floor-stone, floor-tile, floor-wood",
    "food-stuff": "food-other, fruit, salad, vegetable",
    "furniture-stuff": "cabinet, counter, cupboard, desk-stuff, door-stuff, furniture-other, light, mirror-stuff, "
    "shelf, stairs, table",
    "rawmaterial": "cardboard, metal, paper, plastic",
    "textile": "banner, blanket, cloth, clothes, curtain, mat, napkin, pillow, rug, textile-other, towel",
    "wall": "wall-brick, wall-concrete, wall-other, wall-panel, wall-stone, wall-tile, wall-wood",
    "window": "window-blind, window-other",
    "building": "bridge, building-other, house, roof, skyscraper, tent",
    "ground": "dirt, gravel, ground-other, mud, pavement, platform, playingfield, railroad, road, sand, snow",
    "plant": "branch, bush, flower, grass, leaves, moss, plant-other, straw, tree",
    "sky": "clouds, sky-other",
    "solid": "hill, mountain, rock, solid-other, stone, wood",
    "structural": "cage, fence, net, railing, structural-other",
    "water": "fog, river, sea, water-other, waterdrops",
}
_THING_ORDER = (  # of the values: 0 is person, 90 hair brush
    "person", "vehicle", "outdoor", "animal", "accessory", "sports", "kitchen", "food", "furniture", "electronic",
    "appliance", "indoor",
)  # fmt: skip
STUFF_CLASSES = (
    *(name for group in _THING_ORDER for name in words(_THINGS[group])),
    *sorted(name for group in _STUFF.values() for name in words(group)),
)
"""The 182 names by PNG value (COCO-Stuff's id less 1): 91 things, then 91 stuff labels in alphabetical order."""

NEVER_USED = frozenset(
    words("street sign, hat, shoe, eye glasses, plate, mirror, window, desk, door, blender, hair brush")
)
"""The 11 things of COCO's list that no image is annotated with."""


def _coarse(groups: dict[str, str]) -> ClassMap:
    """Supercategories in the order given; labels of no group are ignored."""
    table = class_map(STUFF_CLASSES).table
    coarse = {name: number for number, group in enumerate(groups.values()) for name in words(group)}
    for value, name in enumerate(STUFF_CLASSES):
        table[value] = coarse.get(name, IGNORE)
    return ClassMap(tuple(groups), table)


def _occurring() -> ClassMap:
    table = class_map(STUFF_CLASSES).table
    used = [value for value, name in enumerate(STUFF_CLASSES) if name not in NEVER_USED]
    table[: len(STUFF_CLASSES)] = ILLEGAL
    table[used] = np.arange(len(used))
    return ClassMap(tuple(STUFF_CLASSES[value] for value in used), table)


COCO_STUFF: dict[StuffClasses, ClassMap] = {
    "171": _occurring(),
    "182": class_map(STUFF_CLASSES),
    "27": _coarse(_THINGS | _STUFF),
    "15": _coarse(_STUFF),
}
"""``171``: the labels that occur, in order. ``182``: all. ``27``: the supercategories. ``15``: those of stuff, things
ignored. 255 is unlabelled in all of them, and 0 is person, not background."""


def _folder_for(names: Sequence[str]) -> str:
    """The pixel maps come without the folder above them."""
    tops = {name.partition("/")[0] for name in names}
    maps = tops <= {"train2017", "val2017"} and all(name.endswith(".png") for name in names)
    return "stuffthingmaps" if maps else ""


TRAIN_IDS = "_labelTrainIds"  # how the names end of masks that mmsegmentation converted


def of_train_ids(classes: ClassMap) -> ClassMap:
    """Return the map for converted masks, whose values are the numbers of the 171 labels that occur."""
    used = [value for value in range(len(STUFF_CLASSES)) if COCO_STUFF["171"].table[value] != ILLEGAL]
    table = class_map((), ignored=(IGNORE,)).table
    table[: len(used)] = classes.table[used]
    return ClassMap(classes.names, table)


def of_ids(classes: ClassMap) -> ClassMap:
    """Return the map for masks whose values are the published ids 1 to 182, with 0 unlabelled."""
    table = class_map((), ignored=(0, IGNORE)).table
    table[1 : len(STUFF_CLASSES) + 1] = classes.table[: len(STUFF_CLASSES)]
    return ClassMap(classes.names, table)


_UPPER = frozenset(words("sky-other, clouds, ceiling-other, ceiling-tile, light"))
_LOWER = frozenset(
    words(
        "floor-marble, floor-other, floor-stone, floor-tile, floor-wood, carpet, rug, road, pavement, platform, grass, "
        "playingfield, dirt, ground-other, gravel, mud, sand, snow, sea, river, water-other"
    )
)
# Of 1,000 draws of 20 of 21 maps none is called shifted by this, of maps shifted by one or two 98.7 % or more are. At
# half of it .2 % are called shifted, of ten maps .8 %.
_MARGIN, _ENOUGH = 0.04, 20


def coco_stuff_shifted(values: LabelValues) -> Finding | None:
    """Class numbers that are some too low or too high: what they call sky must lie above what they call ground."""
    if values.with_heights < _ENOUGH:
        return None
    published, of_numbering = range(len(STUFF_CLASSES)), [*range(len(STUFF_CLASSES))]
    if values.numbers[len(STUFF_CLASSES)] != ILLEGAL:  # the settings say ids
        of_numbering = [-1, *published]
    elif values.numbers[published[-1]] == ILLEGAL:  # they say the 171 in order
        of_numbering = [number for number in published if STUFF_CLASSES[number] not in NEVER_USED]

    def sign(value: int, shift: int) -> int:
        if not (0 <= value < len(of_numbering) and 0 <= value + shift < len(of_numbering)):
            return 0
        number = of_numbering[value + shift]
        return 0 if number < 0 else (STUFF_CLASSES[number] in _UPPER) - (STUFF_CLASSES[number] in _LOWER)

    best = best_shift(values, sign, _MARGIN)
    if best == 0:
        return None
    text = f"skies and grounds lie where they do in photographs if every value is raised by {best}"
    return Finding("coco-stuff-shifted", "doubtful", text, "see whether the masks hold ids or numbers of another list")


class CocoStuffConfig(TrainSubset, PairedMasks):
    """A COCO folder with train2017, val2017 and stuffthingmaps."""

    archives = Archives(
        published=(
            *COCO_2017,
            Published(
                "http://calvin.inf.ed.ac.uk/wp-content/uploads/data/cocostuffdataset/stuffthingmaps_trainval2017.zip",
                ("stuffthingmaps/train2017", "stuffthingmaps/val2017"),
                into="stuffthingmaps",
            ),
        ),
        folder_for=_folder_for,
    )

    splits = splits_of("segmentation", train=118_287, val=5_000)  # with every set of classes
    signatures = (coco_stuff_numbering, coco_stuff_shifted)
    kind: Literal["coco_stuff"] = "coco_stuff"
    root: str = Field(description="COCO folder with train2017, val2017 and stuffthingmaps")
    classes: Annotated[StuffClasses, BeforeValidator(as_text)] = Field(
        "171", description="how labels are grouped: 171 classes, or the 27 coarse ones"
    )
    numbering: Literal["published", "ids", "train_ids"] = Field(
        "published", description="of masks: id less 1 and 255; ids: 1 to 182 and 0 unlabelled; train_ids: 0 to 170"
    )

    @property
    def paper_name(self) -> str:
        """As in Cutting the Skip."""
        return "COCO-Stuff"

    @property
    def dataset_name(self) -> str:
        return "coco_stuff" if self.classes == "171" else f"coco_stuff{self.classes}"

    def pair_folders(self, root: Path, split: str) -> PairFolders:
        """Return the folders of train or val.

        Masks: ``stuffthingmaps/<part>`` or what the archive's own name makes of it; ``annotations/<part>`` as
        mmsegmentation has them, converted ones (``_labelTrainIds``) if there are no others; or beside the images, if
        the archive was unpacked into the same folder.
        """
        known_split(self.kind, split, ("train", "val"))
        part = f"{split}2017"
        images = coco_images(root, part)
        for folder in ("stuffthingmaps", "stuffthingmaps_trainval2017", "annotations"):
            masks = root / folder / part
            if masks.is_dir():
                names = [path.stem for path in islice(masks.glob("*.png"), 1000)]
                if names and all(name.endswith(TRAIN_IDS) for name in names):
                    return PairFolders(images, masks, mask_ending=TRAIN_IDS)
                return PairFolders(images, masks, not_masks=TRAIN_IDS)
        among_images = images.is_dir() and next(images.glob("*.png"), None) is not None
        return PairFolders(images, images if among_images else root / "stuffthingmaps" / part)

    def class_map(self, root: Path, folders: PairFolders) -> ClassMap:
        classes = COCO_STUFF[self.classes]
        if self.numbering == "ids":
            return of_ids(classes)
        converted = self.numbering == "train_ids" or folders.mask_ending == TRAIN_IDS
        return of_train_ids(classes) if converted else classes
