"""A block chosen on one half of the units and scored on the other, over many halves, with the error of that choice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dinoskip.results.average_precision import MatchedDetections, average_precision_splits, mean_average_precision
from dinoskip.results.estimates import Estimate, estimate
from dinoskip.results.statistics import F64, Records, as_areas, mean_iou, parts_of_areas
from dinoskip.runtime.randomness import numpy_rng

LEAST_TO_CHOOSE = 30
"""With fewer units a block is fixed beforehand: halves of them choose by chance."""
SPLITS = 50  # more: the choice depends less on the halves, in proportional time


@dataclass(frozen=True, eq=False)
class Choice:
    """The best block, chosen on one half of the units and scored on the other, over many halves.

    ``blocks`` are those that were chosen, with how often (shares), most often first; ``estimate`` is the mean score;
    ``oracle_block`` and ``oracle`` are the best block on all units and its score there, which choosing on the reported
    units would have given.
    """

    blocks: Mapping[str, float]
    estimate: Estimate
    oracle_block: str
    oracle: float

    @property
    def optimism(self) -> float:
        """Score of the best block on the reported units less the cross-fitted one (at least 0, of errors at most 0)."""
        return self.oracle - self.estimate.value


def cross_fitted_best(
    records_by_block: Mapping[str, Records | Sequence[Records]], *, seed: int = 0, lowest: bool = False
) -> Choice:
    """Choose a block by cross-fitting over :data:`SPLITS` random halves of the units. The first of equals is taken.

    Each half is scored by the block that is best (of the highest score, with ``lowest`` of the lowest) on the other
    one; the score is that of both halves together, the mean of all splits, moved into the range of the blocks' own.
    The jackknife repeats the choice without each unit. ``records_by_block`` are of the same units in the same order,
    of each block those of one fit or of as many fits as the other blocks have: fits are chosen and scored together, by
    their mean. The halves depend on the number of units and ``seed`` alone. Raises ValueError for no block, different
    shapes, or fewer than :data:`LEAST_TO_CHOOSE` units.
    """
    fits = {
        name: [records] if isinstance(records, np.ndarray | MatchedDetections) else list(records)
        for name, records in records_by_block.items()
    }
    shapes = {tuple(records.shape for records in of_block) for of_block in fits.values()}
    every = {shape for of_block in shapes for shape in of_block}
    if len(shapes) != 1 or len(every) != 1 or next(iter(every))[0] < LEAST_TO_CHOOSE:
        raise ValueError(f"a block cannot be chosen from records of shapes {sorted(every)}")
    names = list(fits)
    if len(names) == 1:
        alone = estimate(fits[names[0]])
        return Choice({names[0]: 1.0}, alone, names[0], alone.value)
    sign, n = -1.0 if lowest else 1.0, next(iter(every))[0]
    of_blocks, classes, splits = _splits(list(fits.values()), sign, _halves(n, seed))
    counts, values, parts, changes = np.zeros(len(names)), [], np.zeros((n, classes)), np.zeros(n)
    for of_fits, of_units, change, chosen in splits:
        np.add.at(counts, list(chosen), 1)
        values.append(of_fits)
        parts += of_units / SPLITS
        changes += change / SPLITS
    parts += (1 - n) * changes[:, None] / parts.shape[1]
    order = sorted(range(len(names)), key=lambda block: (-counts[block], block))
    at = int(np.nanargmax(sign * of_blocks))
    each = np.mean(values, axis=0)
    most = estimate(fits[names[order[0]]])
    value = float(np.clip(each.mean(), np.nanmin(of_blocks), np.nanmax(of_blocks)))
    score = Estimate(
        value, parts, most.lone, most.sizes, most.hits,
        fits=float(np.var(each, ddof=1)) / len(each) if len(each) > 1 else 0.0,
    )  # fmt: skip
    shares = {names[i]: float(counts[i] / (2 * SPLITS)) for i in order if counts[i] > 0}
    return Choice(shares, score, names[at], float(of_blocks[at]))


_Split = tuple[F64, F64, F64, tuple[int, int]]
"""Result of one split; see :func:`_of_split`."""


def _halves(n: int, seed: int) -> list[NDArray[np.bool_]]:
    """Draw the first half of the units in each of :data:`SPLITS` splits, as flags (n,)."""
    rng, halves = numpy_rng(seed, "cross-fitting", n), []
    for _ in range(SPLITS):
        halves.append(np.zeros(n, dtype=bool))
        halves[-1][rng.permutation(n)[: n // 2]] = True
    return halves


def _splits(
    blocks: Sequence[Sequence[Records]], sign: float, halves: Sequence[NDArray[np.bool_]]
) -> tuple[F64, int, Iterator[_Split]]:
    """The scores of all blocks (L,), means over their fits, the number of classes, and what every split adds up.

    Raises ValueError for AP of several fits, whose detections cannot be ranked together.
    """
    detections = [fit for fits in blocks for fit in fits if isinstance(fit, MatchedDetections)]
    if detections:
        if len(detections) != len(blocks):
            raise ValueError(f"AP of {len(detections)} fits of {len(blocks)} blocks cannot be cross-fitted")
        of_blocks = np.array([mean_average_precision(block) for block in detections])
        of_halves = average_precision_splits(detections, halves, sign)
        splits = ((np.array([value]), parts, change, chosen) for value, parts, change, chosen in of_halves)
        return of_blocks, detections[0].shape[1], splits
    areas = [[as_areas(fit) for fit in fits if isinstance(fit, np.ndarray)] for fits in blocks]
    inside, union = (np.stack([np.stack([fit[kind] for fit in fits], 1) for fits in areas], 1) for kind in (0, 1))
    of_blocks = mean_iou(inside.sum(0), union.sum(0)).mean(-1)
    return of_blocks, inside.shape[3], (_of_split(inside, union, first, sign) for first in halves)


def _of_split(inside: F64, every: F64, first: NDArray[np.bool_], sign: float) -> _Split:
    """Return a split's score in each fit (F,), the units' jackknife parts (n, K) with the blocks held, the change of
    the score where leaving a unit out changes the choice (n,), and the two blocks, from the areas (n, L, F, K) of all
    blocks and fits. Parts and changes are means over fits. Choices are linear in the units."""
    halves = [(inside[units].sum(0), every[units].sum(0)) for units in (first, ~first)]
    scores = [np.where(np.isfinite(found := mean_iou(*half).mean(-1)), sign * found, -np.inf) for half in halves]
    best = [int(score.argmax()) for score in scores]
    blocks = best[1], best[0]  # of the first half, of the second
    total, area = (sum(half[kind][block] for half, block in zip(halves, blocks, strict=True)) for kind in (0, 1))
    shared = np.where(first[:, None, None], inside[:, blocks[0]], inside[:, blocks[1]])
    union = np.where(first[:, None, None], every[:, blocks[0]], every[:, blocks[1]])
    of_fits = [parts_of_areas(shared[:, fit], union[:, fit], total[fit], area[fit]) for fit in range(len(total))]
    switched = np.zeros(len(inside))
    for side, (units, (summed, areas)) in enumerate(zip((first, ~first), halves, strict=True)):
        with np.errstate(divide="ignore", invalid="ignore"):
            weight = np.where(areas > 0, 1 / areas, 0.0) / np.maximum(1, (areas > 0).sum(-1, keepdims=True))
            ratio = np.where(areas > 0, summed / areas, 0.0)
        lower = np.einsum("nlfk,lfk->nl", inside[units], weight) - np.einsum(
            "nlfk,lfk->nl", every[units], weight * ratio
        )
        other = (scores[side] - sign * lower / len(total)).argmax(1)
        moved = np.flatnonzero(other != best[side])
        if moved.size:
            kept, kept_area = (halves[side][kind][blocks[side]] for kind in (0, 1))
            far, far_area = (halves[1 - side][kind] for kind in (0, 1))
            # the score where the other half has another block
            switch = mean_iou(kept + far, kept_area + far_area).mean(-1)
            switched[np.flatnonzero(units)[moved]] = switch[other[moved]] - switch[best[side]]
    return mean_iou(total, area), np.mean(of_fits, axis=0), switched, blocks
