"""Length of the patch features: a few patches of the background that are far longer than the others stand out."""

from __future__ import annotations

from functools import partial

import numpy as np

from visualize import rasters
from visualize.gallery.layers.layer import Cell, Drawn, Layer, Mark
from visualize.palette import sequential


def draw(cell: Cell) -> Drawn | None:
    """A map of every block, from 0 to its own 99 % quantile."""
    store = cell.model.store
    if store is None or cell.image.id not in store.ids:
        return None
    index = list(store.ids).index(cell.image.id)
    tokens = {block: np.asarray(store.tokens(block, index), np.float64) for block in store.blocks}  # (h * w, C)
    maps = {block: np.linalg.norm(one, axis=1).reshape(store.grid(index)) for block, one in tokens.items()}
    encode = partial(rasters.palette_png, palette=sequential(rasters.HEAT_LEVELS))
    return Drawn({block: [rasters.heat_levels(one)] for block, one in maps.items()}, encode)


LAYER = Layer(
    name="Length",
    source="store",
    draw=draw,
    marks=(Mark("scale heat", "the map’s 99 % quantile", before="0"),),
    caption="Euclidean norm of a patch’s feature",
)
