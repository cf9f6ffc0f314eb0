"""MaskCut's objects over the photograph, the rest veiled."""

from __future__ import annotations

from visualize import rasters
from visualize.gallery.layers.layer import VEILED, Layer, Mark, values

LAYER = Layer(
    name="MaskCut",
    order=80,
    source="maps",
    draw=lambda cell: values("objects", cell, VEILED, (rasters.VEIL, *[rasters.TINT] * 255)),
    marks=(Mark("swatch veil", "no object"),),
    caption="MaskCut’s objects, a colour for each round: red, green, yellow",
)
