"""Objects followed through a video."""

from __future__ import annotations

from visualize import rasters
from visualize.gallery.layers.layer import Layer, strips

LAYER = Layer(
    name="Video",
    order=110,
    source="strips",
    draw=lambda cell: strips("video", cell, rasters.TINT),
    parts=("followed", "true"),
    caption="objects in colours of their own; the first frame’s masks are given",
)
