"""COCO's average precision (AP) from per-image records: of any subset of images, without each image, of mixed blocks.

Only the order of scores counts in AP, and detections are matched to objects image by image, so what an image's
detections hit at each overlap (IoU threshold) is all that AP of any set of images needs. AP is that of pycocotools: the
mean of the precision at 101 recalls, at each the largest at that recall or a greater one, then the mean over overlaps
and over the classes that have an object. Detections matched to crowds count neither way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

F64 = NDArray[np.float64]
MOST_OVERLAPS = 16  # bits of the flags
_POINTS = 100  # COCO's recalls are 0, 0.01, ..., 1
_CELLS = 2**22  # numbers held at once: 32 MiB
_LATE = np.linspace(0.0, 1.0, _POINTS + 1) > np.arange(_POINTS + 1) / _POINTS
"""The recalls that pycocotools' own numbers round up (0.57, ...): a recall of exactly 57 of 100 is below that one."""


@dataclass(frozen=True, eq=False)
class MatchedDetections:
    """The detections of n images, matched to their objects of K classes: the records of AP.

    Image ``i`` has the detections ``offsets[i]:offsets[i + 1]``. Of every detection: ``scores`` (D,), of which only the
    order counts, ``classes`` (D,) from 0, and a bit for each overlap in ``hits`` (D,), whether it is matched to an
    object, and ``ignored`` (D,), whether it counts neither way. ``objects`` (n, K) are how many each image has, without
    crowds. Detections of equal scores come in the order of their images, ``order`` (n,), and in an image in their own.
    ``overlaps`` are the first bit that is scored and the one behind the last.
    """

    offsets: NDArray[np.integer]
    scores: NDArray[np.floating]
    classes: NDArray[np.integer]
    hits: NDArray[np.integer]
    ignored: NDArray[np.integer]
    objects: NDArray[np.integer]
    order: NDArray[np.integer]
    overlaps: tuple[int, int]

    ndim = 4  # as an array of ``shape`` has: no other form of records has four

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(n, K, first overlap, the one behind the last): records of the same shape can be paired."""
        return (len(self), self.objects.shape[1], *self.overlaps)

    def __len__(self) -> int:
        return len(self.objects)

    def __getitem__(self, images: ArrayLike) -> MatchedDetections:
        """The records of some images, by number or flag, in that order; ties keep the order that all images had."""
        chosen = np.arange(len(self))[np.asarray(images)]
        counts = np.diff(self.offsets)[chosen]
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        which = np.repeat(self.offsets[:-1][chosen] - offsets[:-1], counts) + np.arange(offsets[-1])
        flat = {name: getattr(self, name)[which] for name in ("scores", "classes", "hits", "ignored")}
        return replace(self, offsets=offsets, objects=self.objects[chosen], order=self.order[chosen], **flat)

    def at(self, first: int, behind: int) -> MatchedDetections:
        """The same detections, scored at the overlaps ``first`` to ``behind - 1``."""
        return replace(self, overlaps=(first, behind))

    @cached_property
    def images(self) -> NDArray[np.int64]:
        """The image of every detection (D,)."""
        return np.repeat(np.arange(len(self)), np.diff(self.offsets))

    @cached_property
    def by_class(self) -> tuple[_OfClass, ...]:
        """The detections of every class, the best first."""
        best = np.lexsort((np.arange(len(self.images)), self.order[self.images], -self.scores, self.classes))
        ends = np.searchsorted(self.classes[best], np.arange(self.objects.shape[1] + 1))
        return tuple(
            self._of_class(best[first:behind], number) for number, (first, behind) in enumerate(pairwise(ends))
        )

    def _of_class(self, which: NDArray[np.int64], number: int) -> _OfClass:
        objects = self.objects[:, number].astype(np.int64)
        return _OfClass(self.images[which], self.scores[which], self.hits[which], self.ignored[which], objects)


@dataclass(frozen=True, eq=False)
class _OfClass:
    """Detections of a class, the best first: ``images``, ``scores``, ``hits``, ``ignored`` (D,); ``objects`` (n,)."""

    images: NDArray[np.int64]
    scores: NDArray[np.floating]
    hits: NDArray[np.integer]
    ignored: NDArray[np.integer]
    objects: NDArray[np.int64]

    def at(self, overlap: int, *, tied: bool) -> _Ranked:
        """Return the detections that count at an overlap; with ``tied``, equal scores share the rank of the last."""
        counted = (self.ignored >> overlap & 1) == 0
        scores = self.scores[counted]
        ranks = np.searchsorted(-scores, -scores, side="right") - 1 if tied else np.arange(len(scores))
        hits = np.flatnonzero(self.hits[counted] >> overlap & 1)
        ranked = ranks <= ranks[hits[-1]] if len(hits) else np.zeros(len(ranks), dtype=np.bool_)
        return _Ranked(self.images[counted][ranked], ranks[ranked], hits, ranks[hits])


@dataclass(frozen=True, eq=False)
class _Ranked:
    """The detections (D,) of a class that count up to the last hit: what comes behind it changes nothing.

    ``images`` and ``ranks`` (D,) are theirs, ``hits`` (H,) the numbers of those that hit and ``ends`` (H,) their ranks.
    """

    images: NDArray[np.int64]
    ranks: NDArray[np.int64]
    hits: NDArray[np.int64]
    ends: NDArray[np.int64]


def matched_detections(
    images: ArrayLike, scores: ArrayLike, classes: ArrayLike, hits: NDArray[np.bool_], ignored: NDArray[np.bool_],
    objects: NDArray[np.integer],
) -> MatchedDetections:  # fmt: skip
    """Return the records of D detections in any order, which is that of equal scores in an image.

    ``images``, ``scores`` and ``classes`` are (D,), ``hits`` and ``ignored`` bool (T, D), ``objects`` (n, K).
    """
    where = np.asarray(images, dtype=np.int64)
    order = np.argsort(where, kind="stable")
    counts = np.bincount(where, minlength=len(objects))
    bits = (1 << np.arange(len(hits)))[:, None]
    hit, ignore = ((flag * bits).sum(0).astype(np.uint16)[order] for flag in (hits & ~ignored, ignored))
    return MatchedDetections(
        np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), np.asarray(scores, dtype=np.float64)[order],
        np.asarray(classes, dtype=np.int64)[order], hit, ignore, objects, np.arange(len(objects)), (0, len(hits)),
    )  # fmt: skip


def problem_of(records: MatchedDetections) -> str:
    """Return what makes records impossible, nothing if they are sound: lengths, ranges, more hits than objects."""
    flat = (records.scores, records.classes, records.hits, records.ignored)
    offsets, classes = records.offsets, records.classes
    if records.objects.ndim != 2 or any(values.ndim != 1 for values in (*flat, offsets)):
        return "arrays of other dimensions"
    if any(not np.issubdtype(values.dtype, np.integer) for values in (records.objects, offsets, *flat[1:])):
        return "numbers that are not whole"
    if len(offsets) != len(records) + 1 or offsets[0] != 0 or (np.diff(offsets.astype(np.int64)) < 0).any():
        return "offsets that are not those of the images"
    if any(len(values) != offsets[-1] for values in flat):
        return "arrays of different lengths"
    if not np.issubdtype(records.scores.dtype, np.floating) or not np.isfinite(records.scores).all():
        return "scores that are not finite"
    if ((classes < 0) | (classes >= records.objects.shape[1])).any() or (records.objects < 0).any():
        return "classes or objects out of range"
    first, behind = records.overlaps
    flags = records.hits.astype(np.int64) | records.ignored.astype(np.int64)
    if not 0 <= first < behind <= MOST_OVERLAPS or ((flags < 0) | (flags >= 1 << MOST_OVERLAPS)).any():
        return "overlaps out of range"
    if (records.hits & records.ignored).any():
        return "hits that do not count"
    cell = records.images * records.objects.shape[1] + classes
    for overlap in range(MOST_OVERLAPS):
        found = np.bincount(cell, weights=records.hits >> overlap & 1, minlength=records.objects.size)
        if (found > records.objects.ravel()).any():
            return "more hits than objects"
    return ""


def _interpolated(right: F64, precision: F64, objects: F64) -> F64:
    """AP (m,) of hits in order: ``right`` (m, H) hits up to each, the ``precision`` (m, H) there; nan without
    ``objects`` (m,)."""
    best = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    recall = right * (_POINTS / np.maximum(objects, 1))[:, None]
    whole = np.floor(recall + 1e-9)  # exact up to a billion objects
    reached = whole + 1 - ((np.abs(recall - whole) < 1e-9) & _LATE[whole.astype(np.int64)])
    ap: F64 = (best * np.diff(reached, axis=1, prepend=0)).sum(1) / (_POINTS + 1)
    ap[objects <= 0] = np.nan
    return ap


def _weighted(seen: _OfClass, overlaps: Iterable[int], times: F64, *, tied: bool) -> F64:
    """AP (m,) of a class, the mean over overlaps, where image i is ``times[:, i]`` times (m, n)."""
    objects, ap = times @ seen.objects, []
    for overlap in overlaps:
        ranked = seen.at(overlap, tied=tied)
        step, parts = max(1, _CELLS // max(1, len(ranked.images))), [np.zeros(0)]
        for at in range(0, len(times), step):
            rows = times[at : at + step]
            every = np.cumsum(rows[:, ranked.images], axis=1)[:, ranked.ends]
            right = np.cumsum(rows[:, ranked.images[ranked.hits]], axis=1)
            hits = right[:, np.searchsorted(ranked.ends, ranked.ends, side="right") - 1] if tied else right
            precision = np.divide(hits, every, out=np.zeros_like(every), where=every > 0)
            parts.append(_interpolated(right, precision, objects[at : at + step]))
        ap.append(np.concatenate(parts))
    mean: F64 = np.mean(ap, axis=0)
    return mean


def average_precision(records: MatchedDetections, *, tied: bool = False) -> F64:
    """Return AP (0..1) by overlap and class (T, K); nan for a class without an object.

    With ``tied`` equal scores have one rank. That is what AP by the order of images tends to with more images.
    """
    once = np.ones((1, len(records)))
    return np.array(
        [
            [_weighted(seen, [overlap], once, tied=tied)[0] for seen in records.by_class]
            for overlap in range(*records.overlaps)
        ]
    )


def mean_average_precision(records: MatchedDetections) -> float:
    """Return the mean of AP (0..1) over overlaps and the classes that have an object; nan if none has."""
    return float(weighted_average_precision(records, np.ones((1, len(records))))[0])


def weighted_average_precision(records: MatchedDetections, times: F64) -> F64:
    """Return the mean AP (m,) of m sets in which image i is ``times[:, i]`` times, whole numbers (m, n)."""
    return mean_of_known(_by_class(records, times, tied=False))


def _by_class(records: MatchedDetections, times: F64, *, tied: bool) -> F64:
    """AP by class (m, K), the mean over overlaps, nan for classes without an object."""
    overlaps = range(*records.overlaps)
    return np.stack([_weighted(seen, overlaps, times, tied=tied) for seen in records.by_class], 1)


def mean_of_known(by_class: F64) -> F64:
    """Return the mean (m,) over the classes of (m, K) that are not nan; nan where all are."""
    there = np.isfinite(by_class)
    count, total = there.sum(-1), np.where(there, by_class, 0.0).sum(-1)
    mean: F64 = np.divide(total, count, out=np.full(count.shape, np.nan), where=count > 0)
    return mean


def _without_each(seen: _OfClass, overlap: int, *, tied: bool) -> F64:
    """Return the change in a class's AP without each image (n,), to first order, in one pass over the detections.

    The mean over 101 recalls is near that over the objects, sum_j best_j / objects: best_j is the precision at some hit
    J at or behind j. A detection that ranks no lower than J has one part in it: without it, that precision's numerator
    or denominator is lower by one. J itself is held. Without the only image that has an object nothing changes.
    """
    ranked, total = seen.at(overlap, tied=tied), int(seen.objects.sum())
    count, n = len(ranked.hits), len(seen.objects)
    if not count:
        return np.zeros(n)
    every = ranked.ends + 1.0
    precision = np.searchsorted(ranked.ends, ranked.ends, side="right") / every
    best = np.maximum.accumulate(precision[::-1])[::-1]
    own = np.flatnonzero(precision == best)
    place = own[np.searchsorted(own, np.arange(count))]  # J of every j
    share = np.bincount(place, minlength=count) / every
    of_hit, of_any = (np.append(np.cumsum(part[::-1])[::-1], 0.0) for part in (share, share * precision))
    first = np.searchsorted(ranked.ends, ranked.ranks)  # the first hit in whose precision a detection counts
    added = np.bincount(ranked.images[ranked.hits], best + of_hit[first[ranked.hits]], n)
    added -= np.bincount(ranked.images, of_any[first], n)
    left, area = total - seen.objects, float(best.sum())
    change: F64 = np.divide(area - added, left, out=np.full(n, area / total), where=left > 0) - area / total
    return change


@dataclass(frozen=True, eq=False)
class WithoutEach:
    """AP without each image: its ``value``, and as in :class:`dinoskip.results.statistics.Jackknife` ``parts`` (n, K),
    ``lone`` and ``sizes`` (K,) of objects."""

    value: float
    parts: F64
    lone: NDArray[np.bool_]
    sizes: F64


def without_each(records: MatchedDetections, *, tied: bool = False) -> WithoutEach:
    """Return what each image contributes to the error of the mean AP: the jackknife, to first order.

    Counting AP anew without each image gives the same errors up to about 60 images and too large ones beyond (2.8 for
    2.0 at 216), as AP jumps between its 101 recalls; and it takes minutes at 5,000. With ``tied`` equal scores have one
    rank, so that the order of images does not matter: AP by order is above it where scores are equal.
    """
    n, classes, overlaps = len(records), len(records.by_class), range(*records.overlaps)
    by_class = _by_class(records, np.ones((1, n)), tied=tied)
    there, change = np.isfinite(by_class[0]), np.zeros((n, classes))
    for number in np.flatnonzero(there):
        seen = records.by_class[number]
        change[:, number] = np.mean([_without_each(seen, overlap, tied=tied) for overlap in overlaps], axis=0)
    objects = records.objects.astype(np.float64)
    total = objects.sum(0)
    squares = np.square(np.divide(objects, total, out=np.zeros_like(objects), where=total > 0)).sum(0)
    sizes = np.divide(1.0, squares, out=np.zeros_like(squares), where=squares > 0)
    lone = there & ((objects > 0).sum(0) == 1) if classes > 1 else np.zeros(classes, dtype=np.bool_)
    return WithoutEach(float(mean_of_known(by_class)[0]), (1 - n) * change / max(1, there.sum()), lone, sizes)


def bias_of_halves(records: MatchedDetections, halves: Sequence[NDArray[np.bool_]], *, tied: bool) -> float:
    """Return how much higher the mean AP of halves (n,) of the images and of the rest is than that of all.

    That is about how much the AP of all is above that of all images there are, as the bias falls with the number of
    images. A class is held against its own AP in the halves that have it: a rare one is detected in more images than it
    is found in, and a sample that has it has too few of these.
    """
    times = np.concatenate([np.stack([half, ~half]) for half in halves]).astype(np.float64)
    whole = _by_class(records, np.ones((1, len(records))), tied=tied)[0]
    of_classes = mean_of_known(_by_class(records, times, tied=tied).T) - whole
    return float(np.nanmean(of_classes)) if np.isfinite(of_classes).any() else 0.0


def mixed(first: MatchedDetections, second: MatchedDetections, which: NDArray[np.bool_]) -> MatchedDetections:
    """Return the records of the images ``which`` (n,) in ``first``, and of the others in ``second``."""
    fields: dict[str, Any] = {
        name: np.concatenate([getattr(first, name), getattr(second, name)])
        for name in ("scores", "classes", "hits", "ignored", "objects", "order")
    }
    offsets = np.concatenate([first.offsets, second.offsets[1:] + first.offsets[-1]])
    n = len(first)
    return replace(first, offsets=offsets, **fields)[np.where(which, np.arange(n), n + np.arange(n))]


Split = tuple[float, F64, F64, tuple[int, int]]


def average_precision_splits(
    blocks: Sequence[MatchedDetections], halves: Sequence[NDArray[np.bool_]], sign: float
) -> Iterator[Split]:
    """Yield of every split into ``halves`` (n,) and the rest what :mod:`dinoskip.decisions.cross_fitting` adds up.

    Each half has the block that is best on the other one (``sign`` -1: of the lowest score). Those are the score of
    both halves together, in which the detections of two blocks are ranked together by their scores; its jackknife parts
    (n, K) with the blocks held; what it changes, without an image, by the other choice (n,); and the blocks of the two
    halves. Without an image, a half's score is lower by the image's part of the whole set's score over the half's size.
    """
    times = np.concatenate([np.stack([first, ~first]) for first in halves]).astype(np.float64)
    by_half = np.stack([weighted_average_precision(block, times) for block in blocks], 1).reshape(len(halves), 2, -1)
    of_images = np.stack([without_each(block).parts.sum(1) for block in blocks], 1)
    for first, of_halves in zip(halves, by_half, strict=True):
        scores = np.where(np.isfinite(of_halves), sign * of_halves, -np.inf)
        best = scores.argmax(1)
        chosen = int(best[1]), int(best[0])
        both = mixed(blocks[chosen[0]], blocks[chosen[1]], first)
        of_both = without_each(both)
        changes = np.zeros(len(first))
        for side, units in enumerate((first, ~first)):
            lower = sign * of_images[units] / units.sum()
            other = (scores[side] - lower).argmax(1)
            for block in np.unique(other[other != best[side]]):
                switched = mixed(blocks[chosen[side]], blocks[block], units)  # this half's choice is the other's block
                changes[np.flatnonzero(units)[other == block]] = mean_average_precision(switched) - of_both.value
        yield of_both.value, of_both.parts, changes, chosen
