"""TokenCut and LOST on every image and block of a feature store: one by one on CPU threads, in batches on a GPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from dinoskip.errors import DataError
from dinoskip.features import FeatureSet, FeatureStore
from eval.pixels import NamedFiles, PixelSizes, pixel_tokens
from eval.resumed import degeneracy
from eval.tokencut.cut import LEAST_TOKENS, TokenCut, batch_size, cut, each
from eval.tokencut.graph import centred, lengths, mean_cosine, normalise, similarities
from eval.tokencut.lost import Lost, grow
from eval.tokencut.memory import images_at_once
from eval.tokencut.positions import PositionRemoval

T = TypeVar("T")
_GPU_THREADS = 2  # while one waits for the GPU, the other finds boxes


class ImageAtBlocks(NamedTuple):
    """One graph to cut: one image of a store (its place) at a block, or at several together."""

    blocks: tuple[int, ...]
    image: int


class ImageCuts(NamedTuple):
    """An image at a block: a cut for each tau, LOST's object where asked for, the mean cosine between its tokens."""

    cuts: list[TokenCut]
    lost: Lost | None
    cosine: float


@dataclass(frozen=True)
class CutRule:
    """Settings of the cut: each tau, on features from which the mean token of their image is subtracted if ``centre``.

    ``positions`` take position out of the features before that. LOST's object is grown over ``lost_k`` tokens, where
    they are given.
    """

    taus: Sequence[float]
    eps: float
    centre: bool = False
    lost_k: int | None = None
    positions: PositionRemoval | None = None


def cut_pixels(
    dataset: NamedFiles, places: Sequence[int], features: FeatureSet | PixelSizes, tau: float, eps: float, workers: int
) -> dict[str, list[TokenCut | None]]:
    """Cuts of every image by its pixels alone, sized as ``features``, standardised; None of under 3 tokens."""
    by_name = {}
    for name, tokens in pixel_tokens(dataset, places, features.transform, features.patch_size).items():
        standard = tokens.standardised()

        def cut_image(i: int, tokens_of: Callable[[int], NDArray[np.float32]] = standard) -> TokenCut | None:
            if math.prod(features.grid(i)) < LEAST_TOKENS:
                return None
            unit = normalise(torch.from_numpy(tokens_of(i))[None])
            return cut(similarities(unit), [features.grid(i)], tau, eps)[0]

        most = max((math.prod(features.grid(i)) for i in range(len(places))), default=0)
        by_name[name] = list(each(cut_image, len(places), images_at_once(most, features.dim, workers)))
    return by_name


def shares_without_cut(cuts: Sequence[TokenCut | None]) -> dict[str, Any]:
    """Fields of a row: the shares of images without a cut, with a complete graph, and whose seeds are ambiguous."""
    flags = np.array([(cut.degenerate, cut.complete, cut.ambiguous) if cut else (False,) * 3 for cut in cuts], np.bool_)
    return degeneracy(flags[:, 0], flags[:, 1], ambiguous=flags[:, 2])


def cut_store(
    store: FeatureStore, groups: Sequence[tuple[int, ...]], rule: CutRule, device: torch.device, workers: int
) -> Iterator[tuple[ImageAtBlocks, ImageCuts]]:
    """Yield every image of at least 3 tokens at every group of blocks once; the similarities are computed once.

    Several blocks are joined by their mean cosine; order as in :func:`each_graph`. The mean cosine between tokens stays
    that of the features themselves. Raises :class:`DataError` for features that are not finite.
    """

    def work(items: Sequence[ImageAtBlocks]) -> list[ImageCuts]:
        grids = [store.grid(item.image) for item in items]
        unit, length, cosines = unit_features(store, items, device, rule.centre, rule.positions)
        similarity = similarities(unit)
        try:
            cuts = [cut(similarity, grids, tau, rule.eps) for tau in rule.taus]
        except ValueError as error:
            raise DataError(f"{store.path}: {store.ids[items[0].image]}: block {items[0].blocks}: {error}") from error
        lost = grow(similarity, length, grids, rule.lost_k) if rule.lost_k else [None] * len(items)
        return [ImageCuts([cut[i] for cut in cuts], lost[i], cosines[i]) for i in range(len(items))]

    yield from each_graph(store, groups, work, device, workers)


def each_graph(
    store: FeatureStore,
    groups: Sequence[tuple[int, ...]],
    work: Callable[[Sequence[ImageAtBlocks]], list[T]],
    device: torch.device,
    workers: int,
) -> Iterator[tuple[ImageAtBlocks, T]]:
    """Yield what ``work`` makes of every image of at least 3 tokens at every group of blocks, with which it is.

    ``work`` gets items of one number of tokens and of blocks together: one at a time on a CPU, from ``workers`` threads
    (0: one a core) and group by group in store order; as many as it takes at once on a GPU. Threads are fewer where the
    share of memory holds fewer of the largest image (:func:`eval.tokencut.memory.images_at_once`).
    """
    large = [i for i in range(len(store)) if math.prod(store.grid(i)) >= LEAST_TOKENS]
    items = [ImageAtBlocks(blocks, i) for blocks in groups for i in large]
    batches = _batches(store, items, device) if in_batches(device) else [[item] for item in items]
    most = max((math.prod(store.grid(i)) for i in large), default=0)
    widest = max((len(blocks) for blocks in groups), default=1) * store.dim  # blocks that are joined lie side by side
    threads = _GPU_THREADS if in_batches(device) else images_at_once(most, widest, workers)
    done = each(lambda number: work(batches[number]), len(batches), threads)
    for batch, results in zip(batches, done, strict=True):
        yield from zip(batch, results, strict=True)


def in_batches(device: torch.device) -> bool:
    """Whether graphs are faster in batches there: on a GPU; a CPU takes one a core."""
    return device.type == "cuda"


def _batches(store: FeatureStore, items: Sequence[ImageAtBlocks], device: torch.device) -> list[list[ImageAtBlocks]]:
    """Items of one number of tokens and of blocks together, in store order, as many as the device takes at once."""
    alike: dict[tuple[int, int], list[ImageAtBlocks]] = {}
    for item in sorted(items, key=lambda item: item.image):
        alike.setdefault((math.prod(store.grid(item.image)), len(item.blocks)), []).append(item)
    batches = []
    for (tokens, _), members in alike.items():
        size = batch_size(tokens, device)
        batches += [members[start : start + size] for start in range(0, len(members), size)]
    return batches


def unit_features(
    store: FeatureStore,
    items: Sequence[ImageAtBlocks],
    device: torch.device,
    centre: bool,
    positions: PositionRemoval | None = None,
) -> tuple[torch.Tensor, torch.Tensor, list[float]]:
    """Normalised features (B, N, C) of items of one number of tokens, their lengths (B, N), the tokens' mean cosines.

    Features and lengths are without what ``positions`` take out, and with ``centre`` then without each image's mean
    token; the cosines are with both. Raises :class:`DataError` for features that are not finite.
    """
    features = _batch(store, items, device, centre=False, positions=None)
    length = lengths(features)
    unit = normalise(features, length)
    cosines = mean_cosine(unit)
    if centre or positions is not None:
        features = _batch(store, items, device, centre=centre, positions=positions)
        length = lengths(features)
        unit = normalise(features, length)
    return unit, length, cosines


def _batch(
    store: FeatureStore,
    items: Sequence[ImageAtBlocks],
    device: torch.device,
    *,
    centre: bool,
    positions: PositionRemoval | None,
) -> torch.Tensor:
    images = [_features(store, item, centre=centre, positions=positions) for item in items]
    return torch.from_numpy(np.stack(images)).to(device)


def _features(
    store: FeatureStore, item: ImageAtBlocks, *, centre: bool, positions: PositionRemoval | None
) -> NDArray[np.float32]:
    """Float32 (N, C). The mean cosine over blocks is the cosine of the concatenated normalised features."""
    parts = [store.tokens(block, item.image) for block in item.blocks]
    for block, part in zip(item.blocks, parts, strict=True):
        if not np.isfinite(part).all():
            raise DataError(f"{store.path}: {store.ids[item.image]}: block {block}: features must be finite")
    if positions is not None:
        grid = store.grid(item.image)
        parts = [positions(block, grid, part) for block, part in zip(item.blocks, parts, strict=True)]
    if centre:
        parts = [centred(torch.from_numpy(part)).numpy() for part in parts]
    if len(parts) == 1:
        return parts[0]
    return np.concatenate([normalise(torch.from_numpy(part)).numpy() for part in parts], axis=1)
