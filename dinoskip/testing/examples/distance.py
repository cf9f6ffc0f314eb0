"""Distance of each patch's feature from the mean of its image, large where a patch differs from its surroundings."""

from __future__ import annotations

from functools import partial

import numpy as np

from visualize import rasters
from visualize.gallery.layers.layer import Cell, Drawn, ImageScore, Layer, Mark, Scores
from visualize.palette import sequential


def distances(cell: Cell) -> dict[int, np.ndarray]:
    """Distances (h, w) of every block; none of an image that the network has no features of."""
    store = cell.model.store
    if store is None or cell.image.id not in store.ids:
        return {}
    index = list(store.ids).index(cell.image.id)
    found = {}
    for block in store.blocks:
        tokens = np.asarray(store.tokens(block, index), np.float64)  # (h * w, C)
        found[block] = np.linalg.norm(tokens - tokens.mean(0), axis=1).reshape(store.grid(index))
    return found


def draw(cell: Cell) -> Drawn | None:
    """A map of every block, from 0 to its own 99 % quantile."""
    encode = partial(rasters.palette_png, palette=sequential(rasters.HEAT_LEVELS))
    return Drawn({block: [rasters.heat_levels(one)] for block, one in distances(cell).items()}, encode)


def scores(cell: Cell) -> Scores:
    """The largest distance over the median: how much one patch stands out."""
    return {"spread": {block: float(one.max() / np.median(one)) for block, one in distances(cell).items()}}


LAYER = Layer(
    name="Distance",
    source="store",
    draw=draw,
    scores=scores,
    metrics={"spread": ImageScore("largest distance from the mean over the median", "spread", 1)},
    marks=(Mark("scale heat", "the map’s 99 % quantile", before="0"),),
    caption="Euclidean distance of a patch’s feature from the mean of its image",
)
