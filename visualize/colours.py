"""PCA colours of feature stores: one basis over the shown images or one an image, aligned along blocks and models."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from visualize.foreground import OutlierCount, count_outliers, find_foreground
from visualize.pca import PatchPCA, channel_ends, procrustes, to_rgb
from visualize.rasters import nearest
from visualize.roughness import roughness

Colours = dict[int, list[np.ndarray | None]]  # block -> uint8 (h, w, 3) per image, None where there is none
Scores = Mapping[str, np.ndarray]  # image id -> (h, w, 3) float


class TokenSource(Protocol):
    """The part in use of a FeatureStore of block outputs under the "square" transform: the grid covers the image."""

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
class PcaBasis:
    """The colours of one store at one block: scores on ``pca``, as they are or times ``turn`` (3, 3), None at the
    deepest block of the first store; each channel between its low and high value, ``unturned`` and ``turned`` (2, 3).
    """

    pca: PatchPCA
    turn: np.ndarray | None
    unturned: np.ndarray
    turned: np.ndarray


@dataclass(frozen=True)
class PcaViews:
    """Three ways to colour the same tokens, each a list of :data:`Colours`, one a store.

    ``aligned``: at each block one basis a store over all shown images; scores of the first store that has the block are
    turned (orthogonal Procrustes) onto those of the next deeper block, of later stores onto the first's. ``unturned``:
    the same basis; left out where nothing was turned. ``image``: a basis for each image, later stores turned onto the
    first store that has the image. Channels are scaled by robust quantiles, of all images or of the one.

    ``roughness`` is that of each image in the basis over all shown images, before channels are scaled, clipped and
    rounded: {block: a value an image} of each store (turned or not makes no difference), nan where there is none.

    ``foreground`` are the colours of :func:`visualize.foreground.find_foreground` over all shown images, ``norms`` the
    tokens' norms (h, w) as multiples of the block's median, ``outliers`` the count of those that lie out.
    ``bases`` are those over all shown images, {block: basis} of each store.
    """

    aligned: list[Colours]
    unturned: list[Colours]
    image: list[Colours]
    roughness: list[dict[int, list[float]]]
    foreground: list[Colours]
    norms: list[Colours]
    outliers: list[dict[int, OutlierCount]]
    bases: list[dict[int, PcaBasis]]


def pca_views(
    stores: Sequence[TokenSource | None], ids: Sequence[str], bases: Sequence[Mapping[int, PcaBasis]] | None = None
) -> PcaViews:
    """Colour images ``ids``; None where a store lacks the image or its tokens are not finite.

    With ``bases``, those of other images of the same stores, ``aligned`` and ``unturned`` colours mean what they mean
    there; blocks without a basis get one of these images.
    """
    empty: list[list[dict[int, Any]]] = [[{} for _ in stores] for _ in range(8)]
    views = PcaViews(*empty)
    blocks = sorted({int(block) for store in stores if store is not None for block in store.blocks})
    deeper: Scores | None = None
    for block in reversed(blocks):
        reference: Scores | None = None
        first: dict[str, np.ndarray] = {}  # the first store's own scores of each image
        for number, store in enumerate(stores):
            if store is None or block not in store.blocks:
                continue
            tokens = _FiniteTokens(store, block, ids)
            if not tokens:
                continue
            basis = bases[number].get(block) if bases else None
            pca = _fitted(tokens) if basis is None else basis.pca
            scores = _scores(tokens, pca)
            turn = _turn(scores, reference or deeper) if basis is None else basis.turn
            turned = scores if turn is None else {name: of_image @ turn for name, of_image in scores.items()}
            basis = basis or PcaBasis(pca, turn, _ends(scores), _ends(turned))
            views.aligned[number][block] = _painted(turned, ids, basis.turned)
            if turn is not None:
                views.unturned[number][block] = _painted(scores, ids, basis.unturned)
            views.image[number][block] = _image_colours(tokens, first, ids)
            views.roughness[number][block] = [
                float(roughness(scores[name])) if name in scores else math.nan for name in ids
            ]
            views.bases[number][block] = basis
            _add_foreground(views, number, block, tokens, ids)
            reference = reference or turned
        deeper = reference or deeper
    return PcaViews(*([dict(sorted(by_block.items())) for by_block in part] for part in empty))


def _add_foreground(views: PcaViews, number: int, block: int, tokens: Scores, ids: Sequence[str]) -> None:
    shown = list(tokens.values())
    colours = dict(zip(tokens, find_foreground(shown).colours, strict=True))
    counted = count_outliers(shown)
    scale = counted.median or 1.0
    norms = {name: np.linalg.norm(of_image.astype(np.float64), axis=-1) / scale for name, of_image in tokens.items()}
    views.foreground[number][block] = [colours.get(name) for name in ids]
    views.norms[number][block] = [norms.get(name) for name in ids]
    views.outliers[number][block] = counted


class _FiniteTokens(Mapping[str, np.ndarray]):
    """Tokens (h, w, C) float32 of each of ``ids`` that the store has with finite tokens, read when asked for."""

    def __init__(self, store: TokenSource, block: int, ids: Sequence[str]) -> None:
        self._store, self._block = store, block
        place = {name: index for index, name in enumerate(store.ids)}
        self._place = {name: place[name] for name in ids if name in place}
        self._place = {name: at for name, at in self._place.items() if np.isfinite(self[name]).all()}

    def __getitem__(self, name: str) -> np.ndarray:
        at = self._place[name]
        return np.asarray(self._store.tokens(self._block, at), np.float32).reshape(*self._store.grid(at), -1)

    def __iter__(self) -> Iterator[str]:
        return iter(self._place)

    def __len__(self) -> int:
        return len(self._place)


class _Rows(Iterable[np.ndarray]):
    """Tokens of each image as rows (h·w, C); they may be read several times."""

    def __init__(self, tokens: Mapping[str, np.ndarray]) -> None:
        self._tokens = tokens

    def __iter__(self) -> Iterator[np.ndarray]:
        return (of_image.reshape(-1, of_image.shape[-1]) for of_image in self._tokens.values())


def _fitted(tokens: Mapping[str, np.ndarray]) -> PatchPCA:
    return PatchPCA(n_components=3).fit(_Rows(tokens))


def _scores(tokens: Mapping[str, np.ndarray], pca: PatchPCA) -> dict[str, np.ndarray]:
    """Scores (h, w, 3) float of each image."""
    return {name: np.asarray(pca.transform(of_image)) for name, of_image in tokens.items()}


def _image_colours(tokens: Scores, first: dict[str, np.ndarray], ids: Sequence[str]) -> list[np.ndarray | None]:
    """Colours by a basis of each image's own, turned onto ``first``'s where it has the image; else added there."""
    colours: dict[str, np.ndarray] = {}
    for name, of_image in tokens.items():
        if of_image.shape[0] * of_image.shape[1] < 2:
            continue
        scores = _scores({name: of_image}, _fitted({name: of_image}))
        if name in first:
            scores = aligned(scores, first)
        else:
            first[name] = scores[name]
        colours[name] = to_rgb(scores[name])
    return [colours.get(name) for name in ids]


def _ends(scores: Scores) -> np.ndarray:
    """Low and high value (2, 3) of each channel over all images."""
    return np.stack(channel_ends(np.concatenate([of_image.reshape(-1, 3) for of_image in scores.values()])))


def _painted(scores: Scores, ids: Sequence[str], ends: np.ndarray) -> list[np.ndarray | None]:
    """Paint all images, each channel scaled between the same ends."""
    return [to_rgb(scores[name], between=(ends[0], ends[1])) if name in scores else None for name in ids]


def _turn(scores: Scores, reference: Scores | None) -> np.ndarray | None:
    """The rotation (3, 3) of ``scores`` onto a reference's on the images that both have; None without any."""
    common = [name for name in scores if reference is not None and name in reference]
    if reference is None or not common:
        return None
    target = np.concatenate([nearest(reference[name], scores[name].shape[:2]).reshape(-1, 3) for name in common])
    return procrustes(np.concatenate([scores[name].reshape(-1, 3) for name in common]), target)


def aligned(scores: Scores, reference: Scores) -> dict[str, np.ndarray]:
    """``scores`` turned as one to come closest to ``reference`` on the images both have (same grids or not)."""
    turn = _turn(scores, reference)
    return dict(scores) if turn is None else {name: of_image @ turn for name, of_image in scores.items()}
