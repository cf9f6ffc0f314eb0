"""Scores of a variant on a benchmark of a study, at a block chosen without the images shown where that is possible.

Rows are arranged by benchmark, variant and epoch (:mod:`visualize.rows`); blocks are chosen, and networks compared, as
:mod:`dinoskip.decisions` says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dinoskip.decisions.choosing import LAST, Score, choose, last_of, records_by_row, score_of
from dinoskip.decisions.comparing import NetworkScores
from dinoskip.results.records import ImageRecords
from dinoskip.results.rows import EvalResult
from visualize.rows import Arranged, Benchmark, Rows, Variants, arranged, one_k_per_dataset
from visualize.tables import mean_deviation

OWN_BEST = "each read at its own best"
"""Setting of the benchmark in which a network is read at any block and read point, chosen together."""


def text_of(side: NetworkScores) -> str:
    """``skip-adamw 41.7 b9``, over seeds ``skip-adamw 41.7 ± 0.4 b9 b8``."""
    if len(side.now) == 1:
        return side.now[0].text
    values = mean_deviation([score.value for score in side.now])
    return " ".join(filter(None, (side.name, values, side.blocks, side.now[0].when)))


class Scores:
    """The numbers of a study's variants, by benchmark and epoch.

    ``variants`` are rows of the settings to be shown (:func:`visualize.rows.principal`), ``records`` what each image
    contributes to those of them (and of their seeds) that have it.
    """

    def __init__(self, variants: Variants, records: Mapping[EvalResult, ImageRecords] | None = None) -> None:
        self._rows = _with_own_best(one_k_per_dataset(arranged(variants)))
        self._records = records_by_row((row for rows in variants.values() for row in rows), records or {})

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

    def of(self, row: EvalResult, how: str = "") -> Score:
        """The number of one row, of which nothing was chosen later."""
        return score_of(row, self._records.get(row, ()), how)

    def chosen(self, rows: Rows) -> Score | None:
        """The single block that :func:`dinoskip.decisions.choosing.choose` takes; None if there is none."""
        return choose(_single(rows), self._records)

    def chosen_last(self, name: str, benchmark: Benchmark) -> Score | None:
        """:meth:`chosen` of a network at its last epoch there."""
        return self.chosen(self.rows(name, benchmark, self.last_epoch(name, benchmark)))

    def earlier(self, rows: Rows) -> Score | None:
        """Choose, as :meth:`chosen` does, among the blocks before the last; None if there is none."""
        end = max((int(row.block) for row in _single(rows).values()), default=0)
        return self.chosen({place: row for place, row in rows.items() if row.block != str(end)})

    def last(self, rows: Rows) -> Score | None:
        """The last single block, at the first of several read points; None if there is none."""
        single = _single(rows)
        if not single:
            return None
        end = last_of(single)
        return score_of(single[end], self._records.get(single[end], ()), LAST, end)

    def several(self, rows: Rows) -> Score | None:
        """Several blocks together, the most if there are several kinds; None if there are none."""
        together = [row for block, row in rows.items() if "+" in block]
        return self.of(max(together, key=lambda row: row.block.count("+")), "several blocks") if together else None


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
