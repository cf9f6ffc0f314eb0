"""PCA colours of feature stores: one basis per model and block over the shown images, aligned between models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from visualize.layers import nearest
from visualize.pca import PatchPCA, procrustes, to_rgb


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


def pca_colours(stores: Sequence[TokenSource | None], ids: Sequence[str]) -> list[dict[int, list[np.ndarray | None]]]:
    """For each store ``{block: [uint8 (h, w, 3) per id, None where the store lacks the image or it is not finite]}``.

    At each block the basis is fitted to all shown images of a store together; scores of later stores are
    turned (orthogonal Procrustes) onto those of the first store that has the block, and every store's
    channels are scaled by their own robust quantiles.
    """
    colours: list[dict[int, list[np.ndarray | None]]] = [{} for _ in stores]
    blocks = sorted({int(block) for store in stores if store is not None for block in store.blocks})
    for block in blocks:
        reference: dict[str, np.ndarray] | None = None
        for number, store in enumerate(stores):
            if store is None or block not in store.blocks:
                continue
            scores = block_scores(store, block, ids)
            if not scores:
                continue
            if reference is None:
                reference = scores
            else:
                scores = aligned(scores, reference)
            names = list(scores)
            painted = to_rgb(np.concatenate([scores[name].reshape(-1, 3) for name in names]))
            sizes = np.cumsum([scores[name].shape[0] * scores[name].shape[1] for name in names])[:-1]
            parts = dict(zip(names, np.split(painted, sizes), strict=True))
            colours[number][block] = [
                parts[name].reshape(scores[name].shape) if name in parts else None for name in ids
            ]
    return colours


def block_scores(store: TokenSource, block: int, ids: Sequence[str]) -> dict[str, np.ndarray]:
    """Scores (h, w, 3) float of each of ``ids`` the store has with finite tokens, on the basis of them all."""
    place = {name: index for index, name in enumerate(store.ids)}
    read = {name: np.asarray(store.tokens(block, place[name]), np.float32) for name in ids if name in place}
    tokens = {name: one for name, one in read.items() if np.isfinite(one).all()}
    if not tokens:
        return {}
    basis = PatchPCA(n_components=3).fit(list(tokens.values()))
    return {name: np.asarray(basis.transform(one)).reshape(*store.grid(place[name]), 3) for name, one in tokens.items()}


def aligned(scores: Mapping[str, np.ndarray], reference: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """``scores`` turned as one to come closest to ``reference`` on the images both have (same grids or not)."""
    common = [name for name in scores if name in reference]
    if not common:
        return dict(scores)
    target = np.concatenate([nearest(reference[name], scores[name].shape[:2]).reshape(-1, 3) for name in common])
    rotation = procrustes(np.concatenate([scores[name].reshape(-1, 3) for name in common]), target)
    return {name: one @ rotation for name, one in scores.items()}
