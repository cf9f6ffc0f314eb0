"""What the values of a mask mean: named class sets of ADE20K and COCO-Stuff as 256-entry tables.

COCO-Stuff has 182 labels: 91 things, of which 11 never occur, and 91 stuff. Its coarse sets are its supercategories,
numbered as in the literature on unsupervised segmentation (PiCIE, STEGO): 12 of things, then 15 of stuff.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dinoskip.data.voc import IGNORE, voc_palette

ILLEGAL = -1  # in a table: a value that no mask of the set may hold
StuffClasses = Literal["171", "182", "27", "15"]


@dataclass(frozen=True, eq=False)
class ClassMap:
    """``table`` int16 (256,): the class number of a mask's value, 255 where ignored, -1 where the value is illegal.

    ``names`` are the classes by number. ``palette`` uint8 (256, 3) colours class numbers: VOC's colours, without its
    black first one, which in VOC is the background.
    """

    names: tuple[str, ...]
    table: np.ndarray

    @property
    def palette(self) -> np.ndarray:
        """Colours by class number, uint8 (256, 3); 255 is VOC's off-white."""
        colours = voc_palette()
        return np.concatenate([colours[1:255], colours[:1], colours[255:]])


def class_map(names: Sequence[str], first: int = 0, ignored: Iterable[int] = (IGNORE,)) -> ClassMap:
    """Classes in order: value ``first`` is class 0, the next one class 1; ``ignored`` values are not scored."""
    table = np.full(256, ILLEGAL, dtype=np.int16)
    table[first : first + len(names)] = np.arange(len(names))
    table[list(ignored)] = IGNORE
    return ClassMap(tuple(names), table)


def _words(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.replace("\n", ",").split(",") if name.strip())


# The first name of each of the 150 classes of SceneParse150 (objectInfo150.txt), pixel value 1 first.
ADE20K_CLASSES = _words("""
wall, building, sky, floor, tree, ceiling, road, bed, windowpane, grass, cabinet, sidewalk, person, earth, door,
table, mountain, plant, curtain, chair, car, water, painting, sofa, shelf, house, sea, mirror, rug, field, armchair,
seat, fence, desk, rock, wardrobe, lamp, bathtub, railing, cushion, base, box, column, signboard, chest of drawers,
counter, sand, sink, skyscraper, fireplace, refrigerator, grandstand, path, stairs, runway, case, pool table,
pillow, screen door, stairway, river, bridge, bookcase, blind, coffee table, toilet, flower, book, hill, bench,
countertop, stove, palm, kitchen island, computer, swivel chair, boat, bar, arcade machine, hovel, bus, towel,
light, truck, tower, chandelier, awning, streetlight, booth, television, airplane, dirt track, apparel, pole, land,
bannister, escalator, ottoman, bottle, buffet, poster, stage, van, ship, fountain, conveyer belt, canopy, washer,
plaything, swimming pool, stool, barrel, basket, waterfall, tent, bag, minibike, cradle, oven, ball, food, step,
tank, trade name, microwave, pot, animal, bicycle, lake, dishwasher, screen, blanket, sculpture, hood, sconce, vase,
traffic light, tray, ashcan, fan, pier, crt screen, plate, monitor, bulletin board, shower, radiator, glass, clock,
flag
""")
ADE20K = class_map(ADE20K_CLASSES, first=1, ignored=(0, IGNORE))
"""Pixel 0 (other) is ignored, 1..150 become 0..149 (SceneParse150); 255 does not occur and is ignored too."""

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
    *(name for group in _THING_ORDER for name in _words(_THINGS[group])),
    *sorted(name for group in _STUFF.values() for name in _words(group)),
)
"""The 182 names by PNG value (COCO-Stuff's id less 1): 91 things, then 91 stuff labels in alphabetical order."""

NEVER_USED = frozenset(
    _words("street sign, hat, shoe, eye glasses, plate, mirror, window, desk, door, blender, hair brush")
)
"""The 11 things of COCO's list that no image is annotated with."""


def _coarse(groups: dict[str, str]) -> ClassMap:
    """Supercategories in the order given; labels of no group are ignored."""
    table = class_map(STUFF_CLASSES).table
    coarse = {name: number for number, group in enumerate(groups.values()) for name in _words(group)}
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
