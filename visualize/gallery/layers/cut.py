"""TokenCut's mask and box."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from visualize import rasters
from visualize.gallery.content import Discovery
from visualize.gallery.layers.layer import Cell, Drawn, ImageScore, Layer, Mark, Scores
from visualize.gallery.scores import best_iou


def cuts_of(cell: Cell) -> dict[int, Discovery]:
    """Return TokenCut's results for a cell's image, by block."""
    cuts = cell.model.discoveries.items()
    return {block: cuts[cell.image.id] for block, cuts in cuts if cell.image.id in cuts}


def extent(cuts: Mapping[int, Discovery]) -> list[int]:
    """Width and height in pixels that its cells cover."""
    first = cuts[min(cuts)]
    height, width = (cells * first.patch_size for cells in first.mask.shape)
    return [width, height]


def draw(cell: Cell) -> Drawn | None:
    """A veil outside the mask, over all without a cut; boxes, null where there is none, are drawn by gallery.js."""
    cuts = cuts_of(cell)
    if not cuts:
        return None
    veil = np.array([rasters.VEIL_COLOUR, rasters.VEIL_COLOUR], np.uint8)
    boxes = {block: [round(float(side), 1) for side in cut.box] if cut.is_cut else None for block, cut in cuts.items()}
    encode = partial(rasters.palette_png, palette=veil, opacity=(rasters.VEIL, 0))
    maps = {block: [cut.mask.astype(np.uint8)] for block, cut in cuts.items()}
    return Drawn(maps, encode, {"cover": extent(cuts), "boxes": boxes})


def scores(cell: Cell) -> Scores:
    """The part of the image that is foreground, and the IoU of the box with the best true one."""
    cuts, boxes = cuts_of(cell), cell.image.boxes
    foreground = {block: 100.0 * float(cut.mask.mean()) for block, cut in cuts.items()}
    overlap = {} if boxes is None else {block: best_iou(cut.box, boxes) for block, cut in cuts.items()}
    return {"foreground": foreground, "iou": overlap}


LAYER = Layer(
    name="TokenCut",
    order=50,
    source="discoveries",
    draw=draw,
    scores=scores,
    metrics={
        "iou": ImageScore("IoU of TokenCut's box with the truth", "IoU", 2, layers=("cut", "vector")),
        "foreground": ImageScore("part of the image in TokenCut's mask", "foreground", 0, "\u00a0%"),
    },
    marks=(
        Mark("swatch line-truth", "ground truth"),
        Mark("swatch line-box", "predicted box"),
        Mark("swatch veil", "outside the cut; all of an image without one"),
    ),
    caption="✓ is a hit: IoU of at least 0.5 with any ground-truth box",
)
