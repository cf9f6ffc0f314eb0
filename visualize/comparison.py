"""What a variant scores on a benchmark, at a block chosen without the images shown, and how far two variants are apart.

Where the records of every image are there (:mod:`dinoskip.records`), differences are paired over images; else they are
those of the two intervals, as if of different images.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from dinoskip.records import ImageRecords
from dinoskip.results import EvalResult, best_by_heldout
from dinoskip.statistics import cross_fitted_best, mcnemar, mean_interval, paired_difference, wilson
from visualize.rows import Benchmark, Rows, Variants, arranged, best, collapse, one_vote, single_blocks, values_of

Records = Mapping[EvalResult, Sequence[ImageRecords]]  # of a row, one a seed
CROSS_FITTED = "chosen by cross-fitting over halves of the images"
HELD_OUT = "chosen on held-out training images"
ON_SHOWN = "chosen on the images shown: an upper estimate"
_NORMAL = NormalDist()
_Z = _NORMAL.inv_cdf(0.975)


@dataclass(frozen=True)
class ScoreDifference:
    """A difference in percent points with its 95 % interval; ``p`` is two-sided, of its being 0."""

    value: float
    low: float
    high: float
    p: float
    paired: bool

    @property
    def text(self) -> str:
        """``+5.2 [+1.1, +9.0]``, and whether it is unpaired."""
        value, low, high = map(signed, (self.value, self.low, self.high))
        return f"{value} [{low}, {high}]" + ("" if self.paired else ", unpaired")

    def p_of(self, value: float) -> float:
        """Two-sided p of the difference being ``value``; of another than 0 by the interval's normal distribution."""
        return self.p if value == 0 else _normal_p(self.value - value, (self.high - self.low) / (2 * _Z))


def signed(value: float) -> str:
    """``+5.2``, ``−0.3``, ``0.0``."""
    return "0.0" if abs(value) < 0.05 else f"{value:+.1f}".replace("-", "−")


def _normal_p(value: float, error: float) -> float:
    """Two-sided p of ``value`` being 0, known to the standard ``error``."""
    if error > 0:
        return 2 * _NORMAL.cdf(-abs(value) / error)
    return float(value == 0)


@dataclass(frozen=True, eq=False)
class Score:
    """A variant's number on a benchmark: percent and its 95 % interval, where there is one.

    ``row`` is that of the block shown; ``blocks`` are two where each scores one half of the images. ``how`` says how
    the block was chosen, ``best`` is the row of the best one on the images shown. ``outcomes`` are what each image
    contributes, one a seed. ``collapsed`` says what it collapsed to: the number then stands without an interval.
    ``when`` is the epoch where it is not the last.
    """

    row: EvalResult
    value: float
    blocks: tuple[str, ...]
    low: float | None = None
    high: float | None = None
    how: str = ""
    best: EvalResult | None = None
    outcomes: tuple[ImageRecords, ...] = ()
    collapsed: str = ""
    when: str = ""

    @property
    def optimism(self) -> float:
        """How much higher the best block on the images shown is, in percent points; 0 if it is the one shown."""
        return self.best.value - self.value if self.best else 0.0

    @property
    def block(self) -> str:
        """``b9``; ``b8/b9`` where halves differ; nothing where a row names none."""
        return "/".join(f"b{block}" for block in dict.fromkeys(self.blocks) if block)

    @property
    def text(self) -> str:
        """``skip-adamw 41.7 b9``."""
        return " ".join(filter(None, (self.row.model, f"{self.value:.1f}", self.block, self.when)))

    def minus(self, other: Score) -> ScoreDifference | None:
        """This number minus the other's; None where neither records nor intervals say how sure it is."""
        if self.outcomes and other.outcomes and _same_images(self.outcomes + other.outcomes):
            return _paired(self.outcomes, other.outcomes)
        if self.low is None or self.high is None or other.low is None or other.high is None:
            return None
        error = math.hypot(self.high - self.low, other.high - other.low) / (2 * _Z)
        value = self.value - other.value
        return ScoreDifference(value, value - _Z * error, value + _Z * error, _normal_p(value, error), False)


def _same_images(outcomes: Sequence[ImageRecords]) -> bool:
    return len({frozenset(one.ids) for one in outcomes}) == 1 and len({one.values.shape for one in outcomes}) == 1


def _paired(high: Sequence[ImageRecords], low: Sequence[ImageRecords]) -> ScoreDifference:
    """The difference over the same images; p is McNemar's for single hits, else normal, of the bootstrap's interval."""
    ids = high[0].ids
    sides = [[one.of(ids) for one in side] for side in (high, low)]
    difference = paired_difference(*sides)
    if len(high) == len(low) == 1 and sides[0][0].ndim == 1 and not _own_scores(sides[0][0]):
        p = mcnemar(sides[0][0], sides[1][0]).p
    else:
        p = _normal_p(difference.value, (difference.high - difference.low) / (2 * _Z))
    return ScoreDifference(100 * difference.value, 100 * difference.low, 100 * difference.high, p, True)


class Scores:
    """The numbers of a study's variants, by benchmark and epoch.

    ``variants`` are rows of the settings to be shown (:func:`visualize.rows.principal`), ``records`` what each image
    contributes to those of them (and of their seeds) that have it.
    """

    def __init__(self, variants: Variants, records: Mapping[EvalResult, ImageRecords] | None = None) -> None:
        self._rows = one_vote(arranged(variants))
        self._records = _by_mean(variants, records or {})

    @property
    def benchmarks(self) -> list[Benchmark]:
        """In reading order; of k-NN one k a data set."""
        return list(self._rows)

    def last_epoch(self, name: str, benchmark: Benchmark) -> int:
        """The last epoch at which a variant has the benchmark, 0 if none."""
        return max(self._rows[benchmark].get(name, {}), default=0)

    def rows(self, name: str, benchmark: Benchmark, epoch: int) -> Rows:
        """By block."""
        return self._rows[benchmark].get(name, {}).get(epoch, {})

    def of(self, row: EvalResult, how: str = "") -> Score:
        """The number of one row."""
        outcomes = tuple(self._records.get(row, ()))
        return Score(row, row.value, (row.block,), row.low, row.high, how, None, outcomes, collapse(row))

    def chosen(self, rows: Rows) -> Score | None:
        """The single block that is best by data that are not shown; None if there is none."""
        top = best(values_of(rows))
        if top is None:
            return None
        single = [rows[str(block)] for block in single_blocks(values_of(rows))]
        if all(row.heldout is not None for row in single) and (held := best_by_heldout(single)) is not None:
            return replace(self.of(held, HELD_OUT), best=rows[top[0]])
        return self._cross_fitted(rows) or replace(self.of(rows[top[0]], ON_SHOWN), best=rows[top[0]])

    def earlier(self, rows: Rows) -> Score | None:
        """The same of the blocks before the last; None if there is none."""
        end = max(single_blocks(values_of(rows)), default=0)
        return self.chosen({block: row for block, row in rows.items() if block != str(end)})

    def last(self, rows: Rows) -> Score | None:
        """The last single block; None if there is none."""
        end = max(single_blocks(values_of(rows)), default=None)
        return None if end is None else self.of(rows[str(end)], "the last block")

    def several(self, rows: Rows) -> Score | None:
        """Several blocks together, the most if there are several kinds; None if there are none."""
        together = [row for block, row in rows.items() if "+" in block]
        return self.of(max(together, key=lambda row: row.block.count("+")), "several blocks") if together else None

    def _cross_fitted(self, rows: Rows) -> Score | None:
        """The block that is best on the other half of the images; None unless every block has one seed's records."""
        single = {str(block): rows[str(block)] for block in single_blocks(values_of(rows))}
        kept = {block: tuple(self._records.get(row, ())) for block, row in single.items()}
        if any(len(one) != 1 for one in kept.values()) or not _same_images([one[0] for one in kept.values()]):
            return None
        ids = sorted(kept[next(iter(kept))][0].ids)  # in an order of their own, so that variants share their halves
        if len(ids) < 2:
            return None
        fitted = cross_fitted_best({block: one[0].of(ids) for block, one in kept.items()})
        row, oracle = single[fitted.chosen[0]], single[fitted.oracle_block]
        same = fitted.chosen[0] == fitted.chosen[1]
        low, high = (row.low, row.high) if same else _interval(fitted.records)
        outcomes = (ImageRecords(tuple(ids), np.asarray(fitted.records)),)
        collapsed = next(filter(None, (collapse(single[block]) for block in fitted.chosen)), "")
        return Score(row, 100 * fitted.value, fitted.chosen, low, high, CROSS_FITTED, oracle, outcomes, collapsed)


def _interval(records: np.ndarray) -> tuple[float | None, float | None]:
    """Wilson's interval of hits in percent, that of the mean of images' own scores; none for areas."""
    if records.ndim > 1:
        return None, None
    low, high = mean_interval(records) if _own_scores(records) else wilson(int(records.sum()), len(records))
    return 100 * low, 100 * high


def _own_scores(records: np.ndarray) -> bool:
    return records.ndim == 1 and np.issubdtype(records.dtype, np.floating)


def _by_mean(variants: Variants, records: Mapping[EvalResult, ImageRecords]) -> dict[EvalResult, list[ImageRecords]]:
    """Records of each row; of a mean over seeds those of its seeds."""
    kept: dict[EvalResult, list[ImageRecords]] = {}
    seeds: dict[EvalResult, list[ImageRecords]] = {}
    for row, one in records.items():
        if row.is_of_a_seed:
            seeds.setdefault(_without_seed(row), []).append(one)
        else:
            kept[row] = [one]
    for rows in variants.values():
        for row in rows:
            if row.deviation is not None and row not in kept and (own := seeds.get(_without_seed(row))):
                kept[row] = own
    return kept


def _without_seed(row: EvalResult) -> EvalResult:
    """What a row of a seed and that of the mean over seeds have in common."""
    note = row.note.rpartition("seed ")[0].rstrip(", ") if row.is_of_a_seed else row.note
    mean = replace(row, note=note, seed=0, value=0.0, low=None, high=None, deviation=None)
    return replace(mean, heldout=None, token_cosine=None, complete=None, degenerate=None)
