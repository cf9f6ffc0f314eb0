"""The block at which a network is read, chosen without the images shown where that can be, and what it then scores.

In this order: the one block that there is; the block that is best on held-out training images, where every block has a
score there; of fewer than :data:`LEAST_TO_CHOOSE` images the last block; the block that is best on other halves of the
images, by cross-fitting, where every block has records of the same images and of as many of the evaluation's own fits,
which are then chosen and scored together, by their mean; else the block that is best on the images shown. Its number is
an upper estimate, which decides nothing. The best block is the highest, of errors the lowest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import NormalDist
from typing import Any

from dinoskip.decisions.cross_fitting import LEAST_TO_CHOOSE, cross_fitted_best
from dinoskip.decisions.failures import failed_cuts, is_lifeless
from dinoskip.results.estimates import Estimate, estimate, known
from dinoskip.results.records import ImageRecords
from dinoskip.results.rows import (
    CROSS_FITTED,
    FIXED,
    HELD_OUT,
    OF_A_NETWORK,
    SHOWN,
    EvalResult,
    Selection,
    best_by_heldout,
    combined,
)
from dinoskip.settings.tasks import is_error

Records = Mapping[EvalResult, Sequence[ImageRecords]]  # of a row, one a fit of the evaluation's own
ALONE = "fixed beforehand, the only one measured"
LAST = "the last block"
BY_HELD_OUT = "chosen on held-out training images"
BY_CROSS_FITTING = "chosen by cross-fitting over halves of the images"
TOO_FEW = "fixed beforehand, the last one: too few images to choose"
ON_SHOWN = "chosen on the images shown: an upper estimate"
_Z = NormalDist().inv_cdf(0.975)  # of 95 % intervals


@dataclass(frozen=True, eq=False)
class Score:
    """A network's number on a benchmark: in the unit of its row, and its 95 % interval, where there is one.

    ``row`` is that of the block shown; ``blocks`` are several where halves of the images choose differently, the
    commonest first, and ``read`` the rows of the two commonest. ``how`` says in words how the block was chosen,
    ``selected`` (:data:`dinoskip.results.rows.SELECTIONS`) how all was that the number is of: the block, and the trial
    of its row. ``best`` is the row of the best block on the images shown. ``outcomes`` are what each image contributes,
    one a fit of the evaluation's own, ``fitted`` is the estimate where there is no one block. ``when`` is the epoch
    where it is not the last.
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
    read: tuple[EvalResult, ...] = ()
    when: str = ""
    selected: Selection = FIXED

    @property
    def failed(self) -> str:
        """Failure of the method at this block, whose number then has no interval; empty if it did not fail."""
        return next(filter(None, map(failed_cuts, self.read or (self.row,))), "")

    @property
    def lifeless(self) -> bool:
        """Whether tokens are alike there and graphs complete."""
        return any(map(is_lifeless, self.read or (self.row,)))

    @property
    def optimism(self) -> float:
        """Advantage of the best block on the images shown, in the row's unit; 0 if that is the block of this score."""
        if self.best is None:
            return 0.0
        return (self.value - self.best.value) if is_error(self.row.metric) else (self.best.value - self.value)

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
        """Ids of the images, sorted; none without records of all fits on the same images."""
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

    @cached_property
    def alone(self) -> Estimate:
        """The score as of images that no other score is of."""
        if self.low is None or self.high is None:
            return known(self.value / 100, units=self.row.n)
        return known(self.value / 100, (self.high - self.low) / (200 * _Z), self.row.n)


def score_of(
    row: EvalResult, records: Sequence[ImageRecords] = (), how: str = "", place: str = "", selected: Selection = FIXED
) -> Score:
    """The number of one row, whose block was ``selected`` so; ``place`` is the block, perhaps with its read point."""
    of_all = combined([selected, row.selected])
    return Score(
        row, row.value, (place or row.block,), row.low, row.high, how, outcomes=tuple(records), selected=of_all
    )


def choose(rows: Mapping[str, EvalResult], records: Records, seed: int = 0) -> Score | None:
    """Choose among ``rows`` by place, of single blocks of one network and measure, as said above; None of none.

    A place is a block, with its read point or norm where there are several. ``seed`` is that of the halves.
    """
    if not rows:
        return None
    top = max(rows, key=lambda place: rows[place].ranking_value)
    trials = combined(row.selected for row in rows.values())

    def read_at(place: str, how: str, selected: Selection) -> Score:
        score = score_of(rows[place], records.get(rows[place], ()), how, place, combined([selected, trials]))
        return replace(score, best=rows[top])

    if len(rows) == 1:
        return read_at(top, ALONE, FIXED)
    if all(row.heldout is not None for row in rows.values()):
        held = best_by_heldout(rows.values())
        return read_at(next(place for place, row in rows.items() if row is held), BY_HELD_OUT, HELD_OUT)
    kept = {place: tuple(records.get(row, ())) for place, row in rows.items()}
    images = _common_images(kept)
    if images is None:
        return read_at(top, ON_SHOWN, SHOWN)
    if len(images) < LEAST_TO_CHOOSE:
        return read_at(last_of(rows), TOO_FEW, FIXED)
    return _cross_fitted(rows, kept, images, seed)


def last_of(rows: Mapping[str, EvalResult]) -> str:
    """The place of the last single block, at the first of several read points."""
    return max(rows, key=lambda place: int(rows[place].block) if rows[place].block.isdecimal() else 0)


def _common_images(kept: Mapping[str, Sequence[ImageRecords]]) -> tuple[str, ...] | None:
    """The images of all blocks and fits, sorted, so that networks share their halves; None if there are no such."""
    counts = {len(fits) for fits in kept.values()}
    same = {(frozenset(record.ids), record.values.shape) for fits in kept.values() for record in fits}
    if len(counts) != 1 or len(same) != 1:
        return None
    return tuple(sorted(next(iter(kept.values()))[0].ids))


def _cross_fitted(
    rows: Mapping[str, EvalResult], kept: Mapping[str, Sequence[ImageRecords]], ids: tuple[str, ...], seed: int
) -> Score:
    metric = next(iter(rows.values())).metric
    by_place = {place: [record.of(ids) for record in fits] for place, fits in kept.items()}
    fit = cross_fitted_best(by_place, seed=seed, lowest=is_error(metric))
    blocks = tuple(fit.blocks)
    row, ends = rows[blocks[0]], fit.estimate.interval
    low, high = (row.low, row.high) if len(blocks) == 1 else (100 * ends[0], 100 * ends[1])
    return Score(
        row, 100 * fit.estimate.value, blocks, low, high, BY_CROSS_FITTING, rows[fit.oracle_block],
        tuple(ImageRecords(ids, values) for values in by_place[blocks[0]]), None if len(blocks) == 1 else fit.estimate,
        tuple(rows[block] for block in blocks[:2]),
        selected=combined([CROSS_FITTED, *(one.selected for one in rows.values())]),
    )  # fmt: skip


def records_by_row(
    rows: Iterable[EvalResult], recorded: Mapping[EvalResult, ImageRecords]
) -> dict[EvalResult, list[ImageRecords]]:
    """Records of each row; of a mean over an evaluation's own fits (``seed N`` in their notes) those of its fits."""
    kept: dict[EvalResult, list[ImageRecords]] = {}
    fits: dict[EvalResult, list[ImageRecords]] = {}
    for row, record in recorded.items():
        if row.is_of_a_seed:
            fits.setdefault(_without_fit(row), []).append(record)
        else:
            kept[row] = [record]
    for row in rows:
        if row.deviation is not None and row not in kept and (of_fits := fits.get(_without_fit(row))):
            kept[row] = of_fits
    return kept


def _without_fit(row: EvalResult) -> EvalResult:
    """Return the row without the fields of its own fit; the rest is equal for all fits and for the mean over them."""
    note = row.note.rpartition("seed ")[0].rstrip(", ") if row.is_of_a_seed else row.note
    own: dict[str, Any] = dict.fromkeys(("low", "high", "deviation", *OF_A_NETWORK))
    return replace(row, note=note, seed=0, value=0.0, no_interval="", **own)
