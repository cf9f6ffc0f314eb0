"""Surface normals, predicted and true."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from visualize.gallery.layers.layer import Cell, Colours, Drawn, Layer, surfaces
from visualize.rasters import UNKNOWN_GREY, nearest


def normal_colours(normals: NDArray[np.floating]) -> Colours:
    """Colours (h, w, 3) of normals (h, w, 3), -1 to 1 as 0 to 255; grey where there is none."""
    values = np.nan_to_num(normals.astype(np.float64))
    colours: Colours = np.rint(np.clip(127.5 * (values + 1), 0, 255)).astype(np.uint8)
    colours[np.abs(values).max(-1) == 0] = UNKNOWN_GREY
    return colours


def in_the_middle(square: Colours, height: int, width: int) -> Colours:
    """A map of the square in the middle of an image (height, width), grey beside it up to the whole image."""
    if height >= width:
        around = round(square.shape[0] * (height - width) / width / 2)
        return np.pad(square, ((around, around), (0, 0), (0, 0)), constant_values=UNKNOWN_GREY)
    around = round(square.shape[1] * (width - height) / height / 2)
    return np.pad(square, ((0, 0), (around, around), (0, 0)), constant_values=UNKNOWN_GREY)


def draw(cell: Cell) -> Drawn:
    """Both maps as large as the whole image; what is predicted is the square in its middle, (3, h, w)."""

    def predicted(values: NDArray[np.floating], true: NDArray[np.floating]) -> Colours:
        return in_the_middle(normal_colours(np.moveaxis(values, 0, -1)), true.shape[0], true.shape[1])

    return surfaces("normals", cell, predicted, lambda true, size: normal_colours(nearest(true, size)))


LAYER = Layer(
    name="Normals",
    order=100,
    source="surfaces",
    draw=draw,
    parts=("predicted", "true"),
    caption="red, green and blue are the three axes of the surface normal, -1 to 1; the square in the middle of the "
    "image is predicted",
)
