"""Boxes and masks of objects as COCO results: what ``pycocotools.coco.COCO.loadRes`` reads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pycocotools import mask as rle

CATEGORY = 1
"""Objects that are found without classes have this one; compare them with ``params.useCats = 0``."""


def coco_image_id(name: str) -> int | str:
    """The id that COCO's annotations have of an image: the number that its file is named by, else the name itself."""
    stem = PurePosixPath(name).stem
    return int(stem) if stem.isdecimal() else name


def coco_result(name: str, box: ArrayLike, score: float = 1.0, mask: NDArray[np.bool_] | None = None) -> dict[str, Any]:
    """One object of the image ``name``: ``box`` is x1 y1 x2 y2 in pixels, end exclusive; ``mask`` bool (H, W) of it.

    The mask becomes ``segmentation`` as compressed RLE (``{"size": [H, W], "counts": text}``).
    """
    x1, y1, x2, y2 = (float(value) for value in np.asarray(box))
    result: dict[str, Any] = {
        "image_id": coco_image_id(name),
        "category_id": CATEGORY,
        "bbox": [x1, y1, x2 - x1, y2 - y1],
        "score": float(score),
    }
    if mask is not None:
        encoded = rle.encode(np.asfortranarray(mask, dtype=np.uint8))
        result["segmentation"] = {"size": list(encoded["size"]), "counts": encoded["counts"].decode("ascii")}
    return result


def in_pixels(mask: NDArray[np.bool_], patch: int, size: Sequence[int]) -> NDArray[np.bool_]:
    """A mask (h, w) of patches as one of the image's pixels, ``size`` (H, W): padding is cut off."""
    height, width = size
    return mask.repeat(patch, 0).repeat(patch, 1)[:height, :width]


def without_misses(results: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Results with a box of some area: an image without a cut has none."""
    return [result for result in results if result["bbox"][2] > 0 and result["bbox"][3] > 0]
