"""PCA colours of feature stores: one basis over the shown images or one an image, aligned between models or not."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from visualize.foreground import OutlierCount, count_outliers, find_foreground
from visualize.pca import PatchPCA, procrustes, to_rgb
from visualize.rasters import nearest
from visualize.roughness import roughness

Colours = dict[int, list[np.ndarray | None]]  # block -> uint8 (h, w, 3) per image, None where there is none
Scores = Mapping[str, np.ndarray]  # image id -> (h, w, 3) float


class TokenSource(Protocol):
    """What is read of a FeatureStore of block outputs under the "square" transform: the grid covers the image."""

    @property
    def ids(self) -> Sequence[str]:
        """Image ids in the order of the store."""

    @property
    def blocks(self) -> Sequence[int]:
        """Block numbers 1..depth that it holds."""

    def grid(self, index: int, /) -> tuple[int, int]:
        """Rows and columns of tokens of image ``index``."""

    def tokens(self, block: int, index: int, /) -> np.ndarray:
        """Tokens (h*w, C) of image ``index``."""


@dataclass(frozen=True)
class PcaViews:
    """Three ways to colour the same tokens, each a list of :data:`Colours`, one a store.

    ``aligned``: at each block one basis a store over all shown images; scores of later stores are turned (orthogonal
    Procrustes) onto those of the first store that has the block. ``own``: the same basis, not turned; blocks of the
    first store are left out, being those of ``aligned``. ``image``: a basis for each image, later stores turned onto
    the first store that has the image. Channels are scaled by robust quantiles, of all images or of the one.

    ``roughness`` is that of each image in the basis over all shown images, before channels are scaled, clipped and
    rounded: {block: a value an image} of each store (turned or not makes no difference), nan where there is none.

    ``foreground`` are the colours of :func:`visualize.foreground.find_foreground` over all shown images, ``norms`` the
    tokens' norms (h, w) as multiples of the block's median, ``outliers`` the count of those that lie out.
    """

    aligned: list[Colours]
    own: list[Colours]
    image: list[Colours]
    roughness: list[dict[int, list[float]]]
    foreground: list[Colours]
    norms: list[Colours]
    outliers: list[dict[int, OutlierCount]]


def pca_views(stores: Sequence[TokenSource | None], ids: Sequence[str]) -> PcaViews:
    """Colour images ``ids``; None where a store lacks the image or its tokens are not finite."""
    empty: list[list[dict[int, Any]]] = [[{} for _ in stores] for _ in range(7)]
    views = PcaViews(*empty)
    blocks = sorted({int(block) for store in stores if store is not None for block in store.blocks})
    for block in blocks:
        reference: Scores | None = None
        first: dict[str, np.ndarray] = {}  # the first store's own scores of each image
        for number, store in enumerate(stores):
            if store is None or block not in store.blocks:
                continue
            tokens = _finite_tokens(store, block, ids)
            if not tokens:
                continue
            scores = _scores(tokens)
            turned = scores if reference is None else aligned(scores, reference)
            views.aligned[number][block] = _painted(turned, ids)
            if reference is not None:
                views.own[number][block] = _painted(scores, ids)
            views.image[number][block] = _image_colours(tokens, first, ids)
            views.roughness[number][block] = [
                float(roughness(scores[name])) if name in scores else math.nan for name in ids
            ]
            _add_foreground(views, number, block, tokens, ids)
            reference = reference or scores
    return views


def _add_foreground(views: PcaViews, number: int, block: int, tokens: Scores, ids: Sequence[str]) -> None:
    shown = list(tokens.values())
    colours = dict(zip(tokens, find_foreground(shown).colours, strict=True))
    counted = count_outliers(shown)
    scale = counted.median or 1.0
    norms = {name: np.linalg.norm(one.astype(np.float64), axis=-1) / scale for name, one in tokens.items()}
    views.foreground[number][block] = [colours.get(name) for name in ids]
    views.norms[number][block] = [norms.get(name) for name in ids]
    views.outliers[number][block] = counted


def _finite_tokens(store: TokenSource, block: int, ids: Sequence[str]) -> dict[str, np.ndarray]:
    """Tokens (h, w, C) float32 of each of ``ids`` that the store has with finite tokens."""
    place = {name: index for index, name in enumerate(store.ids)}
    read = {
        name: np.asarray(store.tokens(block, place[name]), np.float32).reshape(*store.grid(place[name]), -1)
        for name in ids
        if name in place
    }
    return {name: one for name, one in read.items() if np.isfinite(one).all()}


def _scores(tokens: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Scores (h, w, 3) float of each image, on the basis of them all."""
    chunks = [one.reshape(-1, one.shape[-1]) for one in tokens.values()]
    basis = PatchPCA(n_components=3).fit(chunks)
    return {name: np.asarray(basis.transform(one)) for name, one in tokens.items()}


def _image_colours(tokens: Scores, first: dict[str, np.ndarray], ids: Sequence[str]) -> list[np.ndarray | None]:
    """Colours by a basis of each image's own, turned onto ``first``'s where it has the image; else added there."""
    colours: dict[str, np.ndarray] = {}
    for name, one in tokens.items():
        if one.shape[0] * one.shape[1] < 2:
            continue
        scores = _scores({name: one})
        if name in first:
            scores = aligned(scores, first)
        else:
            first[name] = scores[name]
        colours[name] = to_rgb(scores[name])
    return [colours.get(name) for name in ids]


def _painted(scores: Scores, ids: Sequence[str]) -> list[np.ndarray | None]:
    """All images scaled as one."""
    names = list(scores)
    painted = to_rgb(np.concatenate([scores[name].reshape(-1, 3) for name in names]))
    sizes = np.cumsum([scores[name].shape[0] * scores[name].shape[1] for name in names])[:-1]
    parts = dict(zip(names, np.split(painted, sizes), strict=True))
    return [parts[name].reshape(scores[name].shape) if name in parts else None for name in ids]


def aligned(scores: Scores, reference: Scores) -> dict[str, np.ndarray]:
    """``scores`` turned as one to come closest to ``reference`` on the images both have (same grids or not)."""
    common = [name for name in scores if name in reference]
    if not common:
        return dict(scores)
    target = np.concatenate([nearest(reference[name], scores[name].shape[:2]).reshape(-1, 3) for name in common])
    rotation = procrustes(np.concatenate([scores[name].reshape(-1, 3) for name in common]), target)
    return {name: one @ rotation for name, one in scores.items()}
