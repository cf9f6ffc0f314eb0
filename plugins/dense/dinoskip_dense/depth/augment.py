"""Training images of depth heads: image and depth are cut, turned and flipped alike, then the colours changed.

Everything is drawn from one generator an image and visit. The rules are those of the Monocular-Depth-Estimation-Toolbox
as DINOv2 configures it.
"""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from dinoskip_dense.depth.config import DepthConfig

Image = NDArray[np.uint8]
Depth = NDArray[np.float32]
_BORDER = (45 / 480, 472 / 480, 43 / 640, 608 / 640)  # of the image: top, bottom, left, right of what is kept
_GAMMA, _BRIGHTNESS, _CHANNELS = (0.9, 1.1), (0.75, 1.25), (0.9, 1.1)  # ColorAug of DINOv2's depther


def augmented(image: Image, depth: Depth, recipe: DepthConfig, rng: np.random.Generator) -> tuple[Image, Depth]:
    """Return a crop (h, w, 3) of image uint8 (H, W, 3) and its depth (h, w) in metres, ``recipe.crop`` large.

    Where an image is smaller than the crop, it is black with depth 0 (not measured) below and to the right.
    """
    if recipe.border == "nyu":
        image, depth = _without_border(image, depth)
    if rng.random() < 0.5 and recipe.rotate:
        image, depth = _turned(image, depth, rng.uniform(-recipe.rotate, recipe.rotate))
    if rng.random() < recipe.flip:
        image, depth = image[:, ::-1], depth[:, ::-1]
    height, width = recipe.crop
    top, left = (int(rng.integers(0, max(a - b, 0) + 1)) for a, b in zip(depth.shape, recipe.crop, strict=True))
    part = slice(top, top + height), slice(left, left + width)
    image, depth = image[part], depth[part]
    if rng.random() < recipe.colour:
        image = recoloured(image, rng)
    below = (0, height - depth.shape[0]), (0, width - depth.shape[1])
    return np.pad(image, (*below, (0, 0))), np.pad(depth, below)


def _without_border(image: Image, depth: Depth) -> tuple[Image, Depth]:
    """Cut off NYU's white border: what is kept are rows 45:472, columns 43:608 of 480 × 640, or in proportion."""
    # The reference's numbers are those of 480 x 640; other sizes, which it does not have, are cut in proportion.
    height, width = depth.shape
    sides = (height, height, width, width)
    top, bottom, left, right = (round(part * side) for part, side in zip(_BORDER, sides, strict=True))
    return image[top:bottom, left:right], depth[top:bottom, left:right]


def _turned(image: Image, depth: Depth, degrees: float) -> tuple[Image, Depth]:
    """Turn about the middle, clockwise; colours bilinearly, depths by nearest neighbour, 0 from outside."""
    height, width = depth.shape
    matrix = cv2.getRotationMatrix2D(((width - 1) / 2, (height - 1) / 2), -degrees, 1.0)
    size = (width, height)
    turned = cv2.warpAffine(np.ascontiguousarray(image), matrix, size, flags=cv2.INTER_LINEAR)
    depths = cv2.warpAffine(np.ascontiguousarray(depth), matrix, size, flags=cv2.INTER_NEAREST)
    return turned.astype(np.uint8), depths.astype(np.float32)


def recoloured(image: Image, rng: np.random.Generator) -> Image:
    """Return the image with another gamma (of values 0..255, as the reference has it), brightness and channels."""
    values = image.astype(np.float32) ** np.float32(rng.uniform(*_GAMMA))
    values *= np.float32(rng.uniform(*_BRIGHTNESS)) * rng.uniform(*_CHANNELS, size=3).astype(np.float32)
    pixels: Image = np.clip(np.rint(values), 0, 255).astype(np.uint8)
    return pixels
