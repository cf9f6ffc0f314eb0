"""Our number in a cell of a published table: a network's, over all its seeds of training, and how sure it is.

Of several seeds it is their mean, with deviation and Student's interval over seeds
(:func:`dinoskip.results.statistics.over_seeds`); of one seed its own interval, over images. Two networks that are not
seeds of one are never put in one cell: it then names them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from dinoskip.decisions.comparing import aligned
from dinoskip.results.estimates import Difference, difference
from dinoskip.results.records import ImageRecords
from dinoskip.results.rows import EvalResult
from dinoskip.results.statistics import SeedSummary, over_seeds
from visualize.comparison import Scores
from visualize.rows import failed_cuts, spread


@dataclass(frozen=True, eq=False)
class OurNumber:
    """A network's ``values``, one a seed of training, in the printed number's unit.

    ``rows`` are the result rows of the values, if they are of such. ``trained`` is how many seeds the network has: more
    than there are values where some were not measured. ``digits`` are printed after the point.
    """

    network: str
    values: tuple[float, ...]
    rows: tuple[EvalResult, ...] = ()
    trained: int = 1
    digits: int = 1

    @cached_property
    def summary(self) -> SeedSummary:
        """Mean, deviation, number and interval over seeds."""
        return over_seeds(self.values)

    @property
    def deviation(self) -> float | None:
        """Over seeds of training; of one seed over those of its evaluation; None without any."""
        if self.summary.n > 1:
            return self.summary.deviation
        return self.rows[0].deviation if self.rows else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % interval over seeds; of one seed over images; None where there is none, or a method failed."""
        if any(map(failed_cuts, self.rows)):
            return None
        if self.summary.n > 1:
            return self.summary.low, self.summary.high
        low, high = (self.rows[0].low, self.rows[0].high) if self.rows else (None, None)
        return None if low is None or high is None else (low, high)

    @property
    def blocks(self) -> tuple[str, ...]:
        """The blocks of the values, each once; none of a network as a whole."""
        of_rows = (row.block for row in self.rows if row.block and row.task != "classify")
        return tuple(dict.fromkeys(of_rows))

    @property
    def seeds(self) -> str:
        """``3 seeds``, ``1 seed``, or ``2 of 3 seeds`` where not all have this number."""
        count = self.summary.n
        of_all = "" if count >= self.trained else f" of {self.trained}"
        return f"{count}{of_all} {'seed' if max(count, self.trained) == 1 else 'seeds'}"

    @property
    def text(self) -> str:
        """``80.2 ± 1.0 [77.8, 82.6] b9 b8 (3 seeds)``; of one seed ``54.0 [50.0, 56.0] b9 (1 seed)``."""
        single = [f"b{block}" for block in self.blocks if block.isdigit()]
        return " ".join(filter(None, (self.mean, self._spread, *single, f"({self.seeds})")))

    @property
    def mean(self) -> str:
        """The mean as it is printed."""
        return f"{self.summary.mean:.{self.digits}f}"

    @property
    def _spread(self) -> str:
        if self.summary.n == 1:
            return spread(self.rows[0]) if self.rows else ""
        about = f"± {self.summary.deviation:.{self.digits}f}"
        if failed := next(filter(None, map(failed_cuts, self.rows)), ""):
            return f"{about} {failed}"
        return f"{about} [{self.summary.low:.{self.digits}f}, {self.summary.high:.{self.digits}f}]"

    def above(self, paper: float | None) -> float | None:
        """The mean, as printed, minus the paper's number; None where that is not legible."""
        return None if paper is None else float(self.mean) - paper


@dataclass(frozen=True)
class Contested:
    """Networks, not seeds of one, that would stand in the same cell: none of them does."""

    networks: tuple[str, ...]

    @property
    def text(self) -> str:
        """The text of the cell."""
        return f"several: {self.names}"

    @property
    def names(self) -> str:
        """``a and b``, ``a, b and c``."""
        return " and ".join(filter(None, (", ".join(self.networks[:-1]), self.networks[-1])))


Ours = OurNumber | Contested | None
"""Content of a cell; None if nothing was run."""


def number(cell: Ours) -> OurNumber | None:
    """The number of a cell that has one."""
    return cell if isinstance(cell, OurNumber) else None


class OwnDifferences:
    """Differences between two of our numbers, over the same images where both have records of all seeds."""

    def __init__(
        self, rows: Mapping[str, Sequence[EvalResult]], records: Mapping[EvalResult, ImageRecords] | None = None
    ) -> None:
        """``rows`` are those of every variant, ``records`` what each image contributes to those that have them."""
        self._scores = Scores(rows, records)

    def of(self, first: Ours, second: Ours) -> Difference | None:
        """First minus second in percentage points; None of other than two networks' result rows."""
        ours, other = number(first), number(second)
        if ours is None or other is None or not (ours.rows and other.rows) or ours.network == other.network:
            return None
        sides = aligned(*([self._scores.of(row) for row in side.rows] for side in (ours, other)))
        apart = difference(*sides).in_points
        return None if math.isnan(apart.value) else apart
