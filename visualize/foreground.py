"""The foreground of images by PCA, as DINOv2's figure has it, and tokens of outlying norm.

The first component of all tokens of several images together divides them at their mean; the side that is rarer at the
images' border is the foreground. A second PCA, of its tokens alone, colours it, so that parts of objects compare
between images (Oquab et al. 2023, figure 1). Which rule gives the right side, and how often, is measured by
``python -m studies.foreground`` (docs/gallery.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from visualize.pca import PatchPCA, to_rgb
from visualize.rasters import OUTLYING

F64 = NDArray[np.float64]


@dataclass(frozen=True)
class Foreground:
    """Foreground tokens of each image, bool (h, w), and their colours, uint8 (h, w, 3), black elsewhere."""

    masks: Sequence[NDArray[np.bool_]]
    colours: Sequence[NDArray[np.uint8]]


def find_foreground(images: Sequence[NDArray[np.floating]]) -> Foreground:
    """The foreground of images, tokens (h, w, C) each, of one block; all images share both bases.

    Without foreground tokens enough for three components colours stay black. Raises ValueError for tokens that are not
    finite, or fewer than two.
    """
    flat = [np.asarray(tokens).reshape(-1, tokens.shape[-1]) for tokens in images]
    first = PatchPCA(1).fit(flat)
    scores = [first.transform(tokens).reshape(image.shape[:2]) for tokens, image in zip(flat, images, strict=True)]
    scores = [border_sign(scores) * score for score in scores]
    masks = [np.asarray(score > 0) for score in scores]
    inside = [tokens[mask.ravel()] for tokens, mask in zip(flat, masks, strict=True)]
    inside = [tokens for tokens in inside if len(tokens)]
    colours = [np.zeros((*mask.shape, 3), np.uint8) for mask in masks]
    if sum(map(len, inside)) > 3 <= images[0].shape[-1]:
        second = PatchPCA(3).fit(inside)
        every = np.concatenate([second.transform(tokens) for tokens in flat])
        shown = to_rgb(every, mask=np.concatenate([mask.ravel() for mask in masks]))
        ends = np.cumsum([mask.size for mask in masks])[:-1]
        colours = [scores.reshape(*mask.shape, 3) for scores, mask in zip(np.split(shown, ends), masks, strict=True)]
    return Foreground(masks, colours)


def border_sign(scores: Sequence[F64]) -> float:
    """1, or -1 where scores (h, w) of the first component are higher at the images' border than inside, on average.

    The border is one token wide, wider in grids above 16.
    """
    difference = 0.0
    for score in scores:
        width = max(1, min(score.shape) // 16)
        edge = np.ones(score.shape, bool)
        edge[width:-width, width:-width] = False
        if not edge.all():
            difference += float(score[~edge].mean() - score[edge].mean())
    return -1.0 if difference < 0 else 1.0


def outliers(images: Sequence[NDArray[np.floating]], times: float = OUTLYING) -> list[NDArray[np.bool_]]:
    """Return masks (h, w) of images (h, w, C): tokens whose norm is above ``times`` the median norm of all tokens.

    Source of the phenomenon: Darcet et al. 2023, "Vision Transformers Need Registers", whose cut is an absolute norm
    that holds for one network.
    """
    norms = [np.linalg.norm(np.asarray(tokens, np.float64), axis=-1) for tokens in images]
    median = float(np.median(np.concatenate([norm.ravel() for norm in norms])))
    return [np.asarray(norm > times * median) for norm in norms]


@dataclass(frozen=True)
class OutlierCount:
    """A block's share of outlying tokens, their mean norm (0: none), the median norm, the largest over the median."""

    share: float
    norm: float
    median: float
    ratio: float


def count_outliers(images: Sequence[NDArray[np.floating]], times: float = OUTLYING) -> OutlierCount:
    """:class:`OutlierCount` of the tokens (h, w, C) of images at one block."""
    norms = np.concatenate([np.linalg.norm(np.asarray(tokens, np.float64), axis=-1).ravel() for tokens in images])
    lies_out = np.concatenate([outlying.ravel() for outlying in outliers(images, times)])
    median = float(np.median(norms))
    ratio = float(norms.max()) / median if median else 0.0
    return OutlierCount(float(lies_out.mean()), float(norms[lies_out].mean()) if lies_out.any() else 0.0, median, ratio)
