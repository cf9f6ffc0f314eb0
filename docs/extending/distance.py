"""How far each patch's feature is from the mean of its image: patches that differ from their surroundings stand out."""

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
    far = {block: np.linalg.norm(one - one.mean(0), axis=1).reshape(store.grid(index)) for block, one in tokens.items()}
    encode = partial(rasters.palette_png, palette=sequential(rasters.HEAT_LEVELS))
    return Drawn({block: [rasters.heat_levels(one)] for block, one in far.items()}, encode)


LAYER = Layer(
    name="Distance",
    source="store",
    draw=draw,
    marks=(Mark("scale heat", "the map’s 99 % quantile", before="0"),),
    caption="Euclidean distance of a patch’s feature from the mean of its image",
)
