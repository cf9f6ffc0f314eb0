"""Surface normals, predicted and true."""

from __future__ import annotations

from visualize.gallery.layers.layer import Layer, surfaces

LAYER = Layer(
    name="Normals",
    source="surfaces",
    draw=lambda cell: surfaces("normals", cell),
    parts=("predicted", "true"),
    caption="red, green and blue are the three axes of the surface normal, -1 to 1; the square in the middle of the "
    "image is predicted",
)
