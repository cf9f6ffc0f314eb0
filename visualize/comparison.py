"""What a variant scores on a benchmark, at a block chosen without the images shown, and how far two variants are apart.

Where the records of every image are there (:mod:`dinoskip.records`), differences are paired over images; else they are
those of the two intervals, as if of different images (:mod:`dinoskip.estimates`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import NormalDist

from dinoskip.estimates import (
    LEAST_TO_CHOOSE,
    Difference,
    Estimate,
    Judgement,
    cross_fitted_best,
    difference,
    estimate,
    gain_of,
    known,
)
from dinoskip.records import ImageRecords
from dinoskip.results import EvalResult, best_by_heldout
from visualize.rows import (
    Arranged,
    Benchmark,
    Rows,
    Variants,
    arranged,
    failed_cuts,
    graphs_complete,
    one_k_per_dataset,
    tokens_alike,
)
from visualize.tables import mean_deviation

OWN_BEST = "each read at its own best"
"""Setting of the benchmark in which a network is read at any block and read point, chosen together."""
Records = Mapping[EvalResult, Sequence[ImageRecords]]  # of a row, one a seed
CROSS_FITTED = "chosen by cross-fitting over halves of the images"
HELD_OUT = "chosen on held-out training images"
ROUNDED = 0.05
"""Percent points: what is below prints as 0.0 and has no sign."""
FIXED = "fixed beforehand, the last one: too few images to choose"
ON_SHOWN = "chosen on the images shown: an upper estimate"
_Z = NormalDist().inv_cdf(0.975)


def points(apart: Difference | None) -> str:
    """``+5.2 [+1.1, +9.0]`` of a difference in percentage points, and whether it is unpaired; nothing of none."""
    if apart is None:
        return ""
    value, low, high = map(signed, (apart.value, apart.low, apart.high))
    interval = "" if math.isnan(apart.low) or apart.unsure else f" [{low}, {high}]"
    return value + interval + ("" if apart.paired else ", images fixed" if apart.seeds else ", unpaired")


def signed(value: float) -> str:
    """``+5.2``, ``−0.3``, ``0.0``."""
    return "0.0" if abs(value) < ROUNDED else f"{value:+.1f}".replace("-", "−")


@dataclass(frozen=True, eq=False)
class Score:
    """A variant's number on a benchmark: percent and its 95 % interval, where there is one.

    ``row`` is that of the block shown; ``blocks`` are several where halves of the images choose differently, the
    commonest first. ``how`` says how the block was chosen, ``best`` is the row of the best one on the images shown.
    ``outcomes`` are what each image contributes, one a seed of the evaluation's own fit, ``fitted`` is the estimate
    where there is no one block. ``failed`` says how the method failed there: the number then stands without an
    interval; ``lifeless`` whether its tokens are alike, too.
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
    fitted: Estimate | None = None
    failed: str = ""
    lifeless: bool = False
    when: str = ""

    @property
    def optimism(self) -> float:
        """How much higher the best block on the images shown is, in percent points; 0 if it is the one shown."""
        return self.best.value - self.value if self.best else 0.0

    @property
    def block(self) -> str:
        """``b9``; ``b8/b9`` where halves differ; nothing where a row names none."""
        return "/".join(f"b{block}" for block in dict.fromkeys(self.blocks[:2]) if block)

    @property
    def text(self) -> str:
        """``skip-adamw 41.7 b9``."""
        return " ".join(filter(None, (self.row.model, f"{self.value:.1f}", self.block, self.when)))

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """Ids of the images, sorted; none without records of all seeds on the same images."""
        same = {frozenset(outcome.ids) for outcome in self.outcomes}
        return tuple(sorted(self.outcomes[0].ids)) if len(same) == 1 else ()

    @cached_property
    def estimate(self) -> Estimate:
        """The score (0..1) with what every image of :attr:`ids` contributes to its error; without records its error."""
        if self.fitted is not None:
            return self.fitted
        if self.ids:
            return estimate([outcome.of(self.ids) for outcome in self.outcomes])
        return self.alone

    @property
    def alone(self) -> Estimate:
        """The score as of images that no other score is of."""
        if self.low is None or self.high is None:
            return known(self.value / 100, units=self.row.n)
        return known(self.value / 100, (self.high - self.low) / (200 * _Z), self.row.n)


@dataclass(frozen=True, eq=False)
class NetworkScores:
    """A network's numbers, a score a seed: after training, and before it of the same seeds.

    ``before`` is empty where not all were evaluated at epoch 0; ``unresolved`` says why its learning rate is not known
    to be the best.
    """

    name: str
    now: tuple[Score, ...]
    before: tuple[Score, ...] = ()
    unresolved: str = ""

    @property
    def value(self) -> float:
        """Mean over seeds, in percent."""
        return statistics.mean(score.value for score in self.now)

    @property
    def blocks(self) -> str:
        """``b9``, of several seeds ``b9 b8``."""
        return " ".join(dict.fromkeys(score.block for score in self.now))

    @property
    def text(self) -> str:
        """``skip-adamw 41.7 b9``, over seeds ``skip-adamw 41.7 ± 0.4 b9 b8``."""
        if len(self.now) == 1:
            return self.now[0].text
        values = mean_deviation([score.value for score in self.now])
        return " ".join(filter(None, (self.name, values, self.blocks, self.now[0].when)))

    @property
    def is_dead(self) -> bool:
        """Whether the network is (:func:`is_dead`): that alone bars it from winning."""
        return is_dead(self.now, self.before)


def judged_scores(first: NetworkScores, second: NetworkScores, margin: float = 0.0) -> Judgement | None:
    """Compare the first network plus ``margin`` percent points with the second, and the higher one with its own start.

    None where neither records nor intervals nor seeds say how sure the difference is.
    """
    now, other, before, other_before = aligned(first.now, second.now, first.before, second.before)
    gap = difference([replace(score, value=score.value + margin / 100) for score in now], other)
    if len(now) == len(other) == 1 and not gap.n and math.isnan(gap.low):
        return None
    return Judgement(gap, gain_of(*((now, before) if gap.value > 0 else (other, other_before))))


def is_dead(now: Sequence[Score], before: Sequence[Score]) -> bool:
    """Whether a network is dead: tokens alike, graphs complete, and no gain over its own start that is known."""
    if not any(score.lifeless for score in now):
        return False
    gain = gain_of(*aligned(now, before))
    return gain is None or not gain.low > 0


def _lifeless(row: EvalResult) -> bool:
    """Whether tokens are alike and every one is joined to every other."""
    return tokens_alike(row) and graphs_complete(row)


def aligned(*sides: Sequence[Score]) -> list[list[Estimate]]:
    """The estimates of several scores: by their images where all are of the same, else each alone."""
    every = [score for side in sides for score in side]
    shapes = {score.estimate.parts.shape for score in every}
    same = len({score.ids for score in every}) == 1 and len(shapes) == 1 and every[0].ids
    return [[score.estimate if same else score.alone for score in side] for side in sides]


class Scores:
    """The numbers of a study's variants, by benchmark and epoch.

    ``variants`` are rows of the settings to be shown (:func:`visualize.rows.principal`), ``records`` what each image
    contributes to those of them (and of their seeds) that have it.
    """

    def __init__(self, variants: Variants, records: Mapping[EvalResult, ImageRecords] | None = None) -> None:
        self._rows = _with_own_best(one_k_per_dataset(arranged(variants)))
        self._records = _by_mean(variants, records or {})

    @property
    def benchmarks(self) -> list[Benchmark]:
        """Benchmarks in reading order; k-NN has one k a data set."""
        return list(self._rows)

    def last_epoch(self, name: str, benchmark: Benchmark) -> int:
        """The last epoch at which a variant has the benchmark, 0 if none."""
        return max(self._rows[benchmark].get(name, {}), default=0)

    def rows(self, name: str, benchmark: Benchmark, epoch: int) -> Rows:
        """Rows of a network and benchmark by block."""
        return self._rows[benchmark].get(name, {}).get(epoch, {})

    def of(self, row: EvalResult, how: str = "", place: str = "") -> Score:
        """The number of one row; ``place`` is its block, with the read point where there are several."""
        outcomes = tuple(self._records.get(row, ()))
        blocks = (place or row.block,)
        return Score(
            row, row.value, blocks, row.low, row.high, how, None, outcomes,
            failed=failed_cuts(row), lifeless=_lifeless(row),
        )  # fmt: skip

    def chosen(self, rows: Rows) -> Score | None:
        """The single block that is best by data that are not shown; None if there is none."""
        single = _single(rows)
        if not single:
            return None
        top = max(single, key=lambda place: single[place].value)
        if all(row.heldout is not None for row in single.values()):
            held = best_by_heldout(single.values())
            place = next(place for place, row in single.items() if row is held)
            return replace(self.of(single[place], HELD_OUT, place), best=single[top])
        return self._cross_fitted(single) or replace(self.of(single[top], ON_SHOWN, top), best=single[top])

    def earlier(self, rows: Rows) -> Score | None:
        """Choose, as :meth:`chosen` does, among the blocks before the last; None if there is none."""
        end = max((int(row.block) for row in _single(rows).values()), default=0)
        return self.chosen({place: row for place, row in rows.items() if row.block != str(end)})

    def last(self, rows: Rows) -> Score | None:
        """The last single block, at the first of several read points; None if there is none."""
        single = _single(rows)
        end = max(single, key=lambda place: int(single[place].block), default=None)
        return None if end is None else self.of(single[end], "the last block", end)

    def several(self, rows: Rows) -> Score | None:
        """Several blocks together, the most if there are several kinds; None if there are none."""
        together = [row for block, row in rows.items() if "+" in block]
        return self.of(max(together, key=lambda row: row.block.count("+")), "several blocks") if together else None

    def _cross_fitted(self, single: Rows) -> Score | None:
        """The block that is best on other halves of the images, or of few the last.

        None unless every block has one seed's records of the same images.
        """
        kept = {block: tuple(self._records.get(row, ())) for block, row in single.items()}
        shapes = {(frozenset(record.ids), record.values.shape) for records in kept.values() for record in records}
        if any(len(records) != 1 for records in kept.values()) or len(shapes) != 1:
            return None
        ids = tuple(sorted(kept[next(iter(kept))][0].ids))  # so that variants share their halves
        if len(ids) < LEAST_TO_CHOOSE:
            last = self.last(single)
            return replace(last, how=FIXED, best=max(single.values(), key=lambda row: row.value)) if last else None
        fit = cross_fitted_best({block: records[0].of(ids) for block, records in kept.items()})
        blocks = tuple(fit.blocks)
        row = single[blocks[0]]
        ends = fit.estimate.interval
        low, high = (row.low, row.high) if len(blocks) == 1 else (100 * ends[0], 100 * ends[1])
        outcomes = (ImageRecords(ids, kept[blocks[0]][0].of(ids)),)
        fitted = None if len(blocks) == 1 else fit.estimate
        return Score(
            row, 100 * fit.estimate.value, blocks, low, high, CROSS_FITTED, single[fit.oracle_block], outcomes, fitted,
            next(filter(None, (failed_cuts(single[block]) for block in blocks[:2])), ""),
            any(_lifeless(single[block]) for block in blocks[:2]),
        )  # fmt: skip


def _single(rows: Rows) -> dict[str, EvalResult]:
    """Rows of single blocks, by block."""
    single = [(place, row) for place, row in rows.items() if row.block.isdigit()]
    return dict(sorted(single, key=lambda entry: int(entry[1].block)))


def _with_own_best(benchmarks: Arranged) -> Arranged:
    """Add, behind benchmarks that differ only in where blocks are read, one of them all together (:data:`OWN_BEST`).

    Its rows are of single blocks, by block and read point: ``3 mlp``.
    """
    kinds: dict[Benchmark, Arranged] = {}
    for benchmark, rows in benchmarks.items():
        kinds.setdefault(replace(benchmark, setting=OWN_BEST), {})[benchmark] = rows
    every: Arranged = {}
    for kind, parts in kinds.items():
        every |= parts
        facets: set[str] = set()
        joined: dict[str, dict[int, dict[str, EvalResult]]] = {}
        for variant, epochs in (pair for rows in parts.values() for pair in rows.items()):
            for epoch, row in ((epoch, row) for epoch, blocks in epochs.items() for row in _single(blocks).values()):
                facets.add(row.facet)
                joined.setdefault(variant, {}).setdefault(epoch, {})[f"{row.block} {row.facet}"] = row
        if len(parts) == len(facets) > 1:
            every[kind] = joined
    return every


def _by_mean(variants: Variants, records: Mapping[EvalResult, ImageRecords]) -> dict[EvalResult, list[ImageRecords]]:
    """Records of each row; of a mean over seeds those of its seeds."""
    kept: dict[EvalResult, list[ImageRecords]] = {}
    seeds: dict[EvalResult, list[ImageRecords]] = {}
    for row, record in records.items():
        if row.is_of_a_seed:
            seeds.setdefault(_without_seed(row), []).append(record)
        else:
            kept[row] = [record]
    for rows in variants.values():
        for row in rows:
            if row.deviation is not None and row not in kept and (of_seeds := seeds.get(_without_seed(row))):
                kept[row] = of_seeds
    return kept


def _without_seed(row: EvalResult) -> EvalResult:
    """What a row of a seed and that of the mean over seeds have in common."""
    note = row.note.rpartition("seed ")[0].rstrip(", ") if row.is_of_a_seed else row.note
    mean = replace(row, note=note, seed=0, value=0.0, low=None, high=None, deviation=None, no_interval="")
    return replace(mean, heldout=None, token_cosine=None, complete=None, degenerate=None)
