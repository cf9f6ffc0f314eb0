"""TokenCut's eigenvector."""

from __future__ import annotations

from functools import partial

from visualize import rasters
from visualize.gallery.layers.cut import cuts_of, extent
from visualize.gallery.layers.layer import Cell, Drawn, Layer, Mark
from visualize.palette import diverging


def draw(cell: Cell) -> Drawn | None:
    """Diverging colours, white at the mean."""
    cuts = cuts_of(cell)
    if not cuts:
        return None
    maps = {block: [rasters.eigenvector_levels(cut.eigenvector)] for block, cut in cuts.items()}
    encode = partial(rasters.palette_png, palette=diverging(rasters.EIGEN_LEVELS))
    return Drawn(maps, encode, {"cover": extent(cuts)})


LAYER = Layer(
    name="Eigenvector",
    source="discoveries",
    draw=draw,
    marks=(Mark("scale split", "foreground", before="background"),),
    caption="white is the mean of the vector, where TokenCut splits",
)
