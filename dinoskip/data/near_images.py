"""Photographs that two sets have in common though their files differ: resized, turned, compressed again.

A hash of 64 bits of small grey pictures finds candidates, the correlation of thumbnails decides. Pictures of one tone
are left out. Turned are pictures that are mirrored or rotated by quarters of a circle. Larger crops and smaller
rotations are not found; that needs features.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dinoskip.data.equal_images import READERS, ImageFiles
from dinoskip.data.listing import evenly_spread
from dinoskip.data.turns import TURNS
from dinoskip.errors import DataError
from dinoskip.io.images import grey_thumbnail, turn_upright

VERSION = 3
"""Of the comparison: part of the key under which a result is kept."""
MOST = 3000
"""Images of each set that are decoded, of more an even sample: 2 ms each of COCO on one core, .4 ms of 224 pixels."""
MOST_BYTES = 512 << 20
"""Encoded bytes of these: photographs of 12 megapixels take 40 times the time of 500 × 375, as their bytes do."""
_SIDE, _LOWEST, _THUMBNAIL = 32, 8, 16
# Of 50.7 million pairs of other photographs (Imagenette) 13 are as near by the hash, and none has this correlation too.
_NEAREST_BITS, _CORRELATION = 8, 0.95
# Seven turns are seven more chances that one object at the place of another's is taken for a copy (drawn squares:
# 8 bits and .961), and a copy that is only turned and written again is nearer than one that is also cut.
_NEAREST_BITS_TURNED, _CORRELATION_TURNED = 4, 0.98
_FLAT = 3.0  # standard deviation of grey levels: fog and night are all alike
_ROWS = 256  # of the table of distances at a time


def turned(pictures: NDArray[Any], turn: int) -> NDArray[Any]:
    """Square pictures (N, S, S) turned as :func:`dinoskip.io.images.turn_upright` turns one; 1: as they are."""
    return np.moveaxis(turn_upright(np.moveaxis(pictures, 0, -1), turn), -1, 0)


@dataclass(frozen=True, eq=False)
class Thumbnails:
    """Pictures of a set that say something: their ``numbers`` int64 (N,), ``hashes`` uint64 (8, N) and small pictures.

    ``small`` float32 (N, 256) have mean 0 and length 1. Row t - 1 of ``hashes`` is of the pictures after
    :func:`turned` by t. ``looked_at`` of ``total`` images were decoded.
    """

    numbers: NDArray[np.int64]
    hashes: NDArray[np.uint64]
    small: NDArray[np.float32]
    looked_at: int
    total: int

    @classmethod
    def of(cls, files: ImageFiles) -> Thumbnails:
        """Decode an even sample of a set; files that cannot be read are passed over, as they are named elsewhere."""
        chosen = _sample(files)
        with ThreadPoolExecutor(READERS) as pool:
            pictures = list(pool.map(lambda number: _picture(files, number), chosen))
        numbers = [number for number, picture in zip(chosen, pictures, strict=True) if picture is not None]
        grey = np.array([picture for picture in pictures if picture is not None], dtype=np.float32)
        grey = grey.reshape(-1, _SIDE, _SIDE)
        small = grey.reshape(-1, _THUMBNAIL, 2, _THUMBNAIL, 2).mean((2, 4)).reshape(-1, _THUMBNAIL**2)
        told = small.std(1) >= _FLAT
        small = small[told] - small[told].mean(1, keepdims=True)
        small /= np.linalg.norm(small, axis=1, keepdims=True)
        kept = np.array(numbers, dtype=np.int64)[told]
        hashes = np.stack([hashes_of(turned(grey[told], turn)) for turn in TURNS])
        return cls(kept, hashes, small, len(chosen), len(files))


@dataclass(frozen=True)
class NearCommon:
    """Images of one set that have a near copy in another.

    ``count`` of the ``looked_at`` images of the first set, which has ``total``, have one. ``runs`` is the number of
    runs of consecutive images among them; frames of one recording are one run. ``share_of_other`` of the second set was
    looked at, of which ``others`` images have enough contrast. ``partners`` is the mean number of near copies that each
    has there; it is large where all pictures are alike, as those of a fixed camera. ``example`` are the names of such
    an image in both.
    """

    count: int
    runs: int
    looked_at: int
    total: int
    share_of_other: float
    partners: float = 0.0
    others: int = 0
    example: tuple[str, str] = ("", "")

    @property
    def share(self) -> float:
        """The estimated share of the first set that has a near copy in the whole second set."""
        return self.count / max(self.looked_at * self.share_of_other, 1e-9)


def _sample(files: ImageFiles) -> list[int]:
    mean = max(float(files.sizes.mean()), 1.0) if len(files) else 1.0
    return evenly_spread(len(files), max(1, min(MOST, int(MOST_BYTES / mean))))


def _picture(files: ImageFiles, number: int) -> NDArray[np.uint8] | None:
    with suppress(DataError):
        return np.asarray(grey_thumbnail(files.encoded(number), files.paths[number], _SIDE), dtype=np.uint8)
    return None


def _cosines() -> NDArray[np.float32]:
    """The lowest cosines (8, 32) of the DCT of 32 values."""
    places = (2 * np.arange(_SIDE) + 1) * np.pi / (2 * _SIDE)
    return np.cos(np.arange(_LOWEST)[:, None] * places).astype(np.float32)


def hashes_of(grey: NDArray[np.float32]) -> NDArray[np.uint64]:
    """Hash pictures (N, 32, 32): whether each of the 8 × 8 lowest terms of the DCT is above their median."""
    cosines = _cosines()
    terms = (cosines @ grey @ cosines.T).reshape(len(grey), _LOWEST**2)
    bits = terms > np.median(terms, axis=1, keepdims=True) if len(grey) else np.zeros((0, 64), bool)
    return np.packbits(bits, axis=1).view(np.uint64).reshape(-1)


class NearPair(NamedTuple):
    """The numbers of two near-equal images, the second most like the first of ``partners`` that are near."""

    first: int
    second: int
    partners: int


def near_pairs(first: Thumbnails, second: Thumbnails, turn: int = 1) -> list[NearPair]:
    """Pairs of numbers of near-equal images: for each of ``first``, turned, that has one, the one most like it."""
    pairs = []
    square = first.small.reshape(-1, _THUMBNAIL, _THUMBNAIL)
    small = turned(square, turn).reshape(first.small.shape)
    bits, least = (_NEAREST_BITS_TURNED, _CORRELATION_TURNED) if turn != 1 else (_NEAREST_BITS, _CORRELATION)
    for start in range(0, len(small), _ROWS):
        rows = first.hashes[turn - 1, start : start + _ROWS, None]
        near = np.bitwise_count(rows ^ second.hashes[0][None]) <= bits
        for row in np.flatnonzero(near.any(1)).tolist():
            others = np.flatnonzero(near[row])
            alike = second.small[others] @ small[start + row]
            best, count = int(np.argmax(alike)), int((alike >= least).sum())
            if count:
                pairs.append(NearPair(int(first.numbers[start + row]), int(second.numbers[others[best]]), count))
    return pairs


def near_images(scored: ImageFiles, fitted: ImageFiles, of_scored: Thumbnails, of_fitted: Thumbnails) -> NearCommon:
    """Return how many images of ``scored`` have a near copy in ``fitted`` that is not the same file by its bytes."""
    turns = reversed(TURNS)  # the copy that is not turned is named, where there is one
    found = {pair.first: pair for turn in turns for pair in near_pairs(of_scored, of_fitted, turn)}
    pairs = [pair for _, pair in sorted(found.items()) if not _same(scored, fitted, pair)]
    example = (scored.shown(pairs[0].first), fitted.shown(pairs[0].second)) if pairs else ("", "")
    places = np.searchsorted(of_scored.numbers, [pair.first for pair in pairs])
    partners = float(np.mean([pair.partners for pair in pairs])) if pairs else 0.0
    runs = int((np.diff(places) > 1).sum()) + 1 if pairs else 0
    share = of_fitted.looked_at / max(of_fitted.total, 1)
    others = len(of_fitted.numbers)
    return NearCommon(len(pairs), runs, of_scored.looked_at, of_scored.total, share, partners, others, example)


def _same(scored: ImageFiles, fitted: ImageFiles, pair: NearPair) -> bool:
    mine, other = pair.first, pair.second
    if scored.sizes[mine] != fitted.sizes[other]:
        return False
    return scored.digest(mine, whole=True) == fitted.digest(other, whole=True)
