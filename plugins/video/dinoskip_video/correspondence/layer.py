"""Keypoints of an object found in another image."""

from __future__ import annotations

from visualize.gallery.layers.layer import Layer, strips

LAYER = Layer(
    name="Keypoints",
    order=120,
    source="strips",
    draw=lambda cell: strips("correspondence", cell, 255),
    parts=("found", "true"),
    caption="a colour for each keypoint; in the second image filled where found within a tenth of the object, else a "
    "ring with a line to where it is",
)
