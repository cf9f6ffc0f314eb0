"""Depth, predicted and true."""

from __future__ import annotations

from visualize.gallery.layers.layer import Layer, Mark, surfaces

LAYER = Layer(
    name="Depth",
    source="surfaces",
    draw=lambda cell: surfaces("depth", cell),
    parts=("predicted", "true"),
    marks=(Mark("scale heat", "0.5 m and less", before="10 m and more"),),
    caption="logarithmic; grey was not measured",
)
