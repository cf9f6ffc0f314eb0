"""Kind ``ade20k``: SceneParse150, 150 classes."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from dinoskip.data.listing import require_folder
from dinoskip.data.segmentation import IGNORE, ClassMap, class_map, words
from dinoskip.data.sets.kind import Archives, Published, TrainSubset, splits_of
from dinoskip.data.sets.numberings import ade20k_reduced, ade20k_shifted
from dinoskip.data.sets.pairs import PairedMasks, PairFolders, known_split

ADE20K_FOLDERS = {"train": "training", "val": "validation"}
# The first name of each of the 150 classes of SceneParse150 (objectInfo150.txt), pixel value 1 first.
ADE20K_CLASSES = words("""
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
REDUCED = class_map(ADE20K_CLASSES, ignored=(254, IGNORE))
"""Masks that were reduced by one already, as mmsegmentation does in memory: other is 255, or 254."""


class Ade20kConfig(TrainSubset, PairedMasks):
    """ADEChallengeData2016 (SceneParse150), or the folder that holds it."""

    archives = Archives(
        published=(
            Published(
                "http://data.csail.mit.edu/places/ADEchallenge/ADEChallengeData2016.zip",
                ("ADEChallengeData2016/images/training", "ADEChallengeData2016/annotations/validation"),
                "7328b3957e407ddae1d3cbf487f149ef",
            ),
        ),
    )

    splits = splits_of("segmentation", train=20_210, val=2_000)
    signatures = (ade20k_reduced, ade20k_shifted)
    kind: Literal["ade20k"] = "ade20k"
    root: str = Field(description="ADEChallengeData2016, or the folder that holds it")
    numbering: Literal["published", "reduced"] = Field(
        "published", description="of masks: 0 other and 1 to 150; reduced: 0 to 149 and 255 other"
    )

    @property
    def paper_name(self) -> str:
        """As in Cutting the Skip."""
        return "ADE20K"

    def pair_folders(self, root: Path, split: str) -> PairFolders:
        """Return the folders of train or val."""
        known_split(self.kind, split, tuple(ADE20K_FOLDERS))
        require_folder(root, "ADEChallengeData2016")
        inner = root / "ADEChallengeData2016"
        base, name = inner if inner.is_dir() else root, ADE20K_FOLDERS[split]
        return PairFolders(base / "images" / name, base / "annotations" / name)

    def class_map(self, root: Path, folders: PairFolders) -> ClassMap:
        return REDUCED if self.numbering == "reduced" else ADE20K
