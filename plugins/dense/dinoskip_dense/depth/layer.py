"""Depth, predicted and true."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from visualize.gallery.layers.layer import Colours, Layer, Mark, surfaces
from visualize.palette import sequential
from visualize.rasters import UNKNOWN_GREY, nearest

NEAREST, FARTHEST = 0.5, 10.0
"""Metres: the ends of the colours of depth, logarithmic between; rooms lie within."""


def depth_colours(metres: NDArray[np.floating]) -> Colours:
    """Colours (h, w, 3) of a depth map (h, w): near is pale, far is dark, not measured (0, NaN) is grey."""
    measured = np.isfinite(metres) & (metres > 0)
    logarithm = np.log(np.where(measured, metres, FARTHEST).clip(NEAREST, FARTHEST).astype(np.float64))
    far = (logarithm - np.log(NEAREST)) / (np.log(FARTHEST) - np.log(NEAREST))
    colours: Colours = sequential(256)[np.rint(255 * (1 - far)).astype(np.intp)]
    colours[~measured] = UNKNOWN_GREY
    return colours


LAYER = Layer(
    name="Depth",
    order=90,
    source="surfaces",
    draw=lambda cell: surfaces(
        "depth", cell, lambda metres, _: depth_colours(metres), lambda true, size: depth_colours(nearest(true, size))
    ),
    parts=("predicted", "true"),
    marks=(Mark("scale heat", "0.5 m and less", before="10 m and more"),),
    caption="logarithmic; grey was not measured",
)
