"""A photograph with what object discovery made of it: the cut's mask, its box and the ground truth."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image, ImageDraw

FOUND, TRUTH = (255, 140, 0), (0, 200, 255)  # orange and light blue, which colour-blind readers tell apart
_VEIL = 0.35  # brightness of what the cut leaves out
_WIDTH = 3  # pixels of a box's line


def overlay(
    image: NDArray[np.uint8], mask: NDArray[np.bool_], patch_size: int, box: ArrayLike, truth: Iterable[ArrayLike]
) -> Image.Image:
    """Return the picture: ``mask`` (h, w, in cells) bright, the rest veiled, ``box`` orange, ``truth`` light blue.

    ``image`` is uint8 (H, W, 3); boxes are x1 y1 x2 y2 in its pixels, end exclusive. The box -1 -1 -1 -1 of an image
    without a cut is not drawn: ``no cut`` stands in its corner.
    """
    height, width = image.shape[:2]
    inside = mask.repeat(patch_size, axis=0).repeat(patch_size, axis=1)[:height, :width]
    picture = Image.fromarray(np.where(inside[..., None], image, (image * _VEIL).astype(np.uint8)))
    draw = ImageDraw.Draw(picture)
    if found := bool((np.asarray(box) >= 0).all()):
        outlines = [*((each, TRUTH) for each in truth), (box, FOUND)]
    else:
        outlines = [(each, TRUTH) for each in truth]
    for outlined, colour in outlines:
        x1, y1, x2, y2 = (int(side) for side in np.asarray(outlined).reshape(4))
        draw.rectangle((x1, y1, max(x1, x2 - 1), max(y1, y2 - 1)), outline=colour, width=_WIDTH)
    if not found:
        draw.text((2 * _WIDTH, 2 * _WIDTH), "no cut", FOUND)
    return picture
