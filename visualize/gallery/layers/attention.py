"""Attention of the CLS token, by head."""

from __future__ import annotations

from functools import partial

import numpy as np

from visualize import rasters
from visualize.gallery.layers.layer import Cell, Drawn, Layer, Mark
from visualize.palette import sequential

MOST_HEADS = 64  # names made beforehand; of published ViTs none has more heads


def draw(cell: Cell) -> Drawn | None:
    """The mean of the heads, then each; finite ones alone."""
    attention = {
        block: np.asarray(heads[cell.image.id], np.float64)
        for block, heads in cell.model.attention.items()
        if cell.image.id in heads and np.isfinite(heads[cell.image.id]).all()
    }
    if not attention:
        return None
    each = {block: [heads.mean(axis=0), *heads] for block, heads in attention.items()}
    maps = {block: [rasters.heat_levels(head) for head in heads] for block, heads in each.items()}
    peaks = {block: [round(100 * float(head.max()), 1) for head in heads] for block, heads in each.items()}
    encode = partial(rasters.palette_png, palette=sequential(rasters.HEAT_LEVELS))
    return Drawn(maps, encode, {"parts": list(range(max(map(len, maps.values())))), "peaks": peaks})


LAYER = Layer(
    name="Attention",
    order=130,
    source="attention",
    draw=draw,
    parts=("mean", *(f"head {head}" for head in range(1, MOST_HEADS + 1))),
    marks=(Mark("scale heat", "the map’s 99 % quantile", before="0"),),
    caption="attention of the CLS token; the peak is the share that one patch gets",
)
