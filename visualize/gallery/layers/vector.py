"""TokenCut's eigenvector, or stripes where there is no cut."""

from __future__ import annotations

from functools import partial

import numpy as np

from visualize import rasters
from visualize.gallery.layers.cut import cuts_of, extent
from visualize.gallery.layers.layer import Cell, Drawn, Layer, Mark
from visualize.palette import diverging

STRIPE = (154, 152, 160)  # .swatch.complete of gallery.css
_STRIPED = rasters.EIGEN_LEVELS  # the palette's place behind the vector's levels
_APART = 4  # tokens between stripes


def stripes(shape: tuple[int, int]) -> np.ndarray:
    """Levels uint8 (h, w) of grey diagonals over the colour of the split."""
    rows, columns = np.indices(shape)
    middle = rasters.EIGEN_LEVELS // 2
    return np.where((rows + columns) % _APART == 0, _STRIPED, middle).astype(np.uint8)


def draw(cell: Cell) -> Drawn | None:
    """Diverging colours, white at the mean; stripes without a cut."""
    cuts = cuts_of(cell)
    if not cuts:
        return None
    maps = {
        block: [rasters.eigenvector_levels(cut.eigenvector) if cut.is_cut else stripes(cut.mask.shape)]
        for block, cut in cuts.items()
    }
    palette = np.concatenate([diverging(rasters.EIGEN_LEVELS), np.array([STRIPE], np.uint8)])
    encode = partial(rasters.palette_png, palette=palette)
    return Drawn(maps, encode, {"cover": extent(cuts)})


LAYER = Layer(
    name="Eigenvector",
    order=40,
    source="discoveries",
    draw=draw,
    marks=(Mark("scale split", "foreground", before="background"), Mark("swatch complete", "no cut")),
    caption="White is the mean of the vector, where TokenCut splits. Where the graph joins every patch to every other, "
    "or its second eigenvalue is multiple, there is no cut: centre: true, another facet or a higher tau may help.",
)
