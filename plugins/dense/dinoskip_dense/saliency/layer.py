"""The salient object over the photograph, the rest veiled."""

from __future__ import annotations

from visualize import rasters
from visualize.gallery.layers.layer import VEILED, Layer, Mark, values

LAYER = Layer(
    name="Saliency",
    order=70,
    source="maps",
    draw=lambda cell: values("saliency", cell, VEILED, (rasters.VEIL, 0)),
    marks=(Mark("swatch veil", "outside the object"),),
    caption="the part of TokenCut’s foreground that holds the seed",
)
