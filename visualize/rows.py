"""Comparable result rows: one metric on one data set in one setting, by variant, epoch and block."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from dinoskip.decisions.failures import failed_cuts
from dinoskip.results import rows as results
from dinoskip.results.rows import UNKNOWN_EPOCH, EvalResult
from dinoskip.settings.tasks import TASKS, headline, task

Variants = Mapping[str, Sequence[EvalResult]]
T = TypeVar("T")
Key = tuple[str, str, str, str]
Rows = Mapping[str, EvalResult]  # of one variant and epoch, by block; several blocks are joined by +

SKIP, DEFAULT, INITIALISED = "skip", "skipless", "skipless, initialised"
"""Roles of a variant: with skips; without, as they are usually begun; without, begun as in "Cutting the Skip"."""


@dataclass(frozen=True)
class StudyVariant:
    """One variant of a study: its rows, and its settings as they should be read (model, optimizer, weights, ...).

    ``role`` (:data:`SKIP` and so on), ``optimizer`` and ``depth`` (number of blocks) say in which cells of
    a published table it stands; a role of "" stands in none. ``family`` is what it shares with those that differ in
    the ``seed`` of training alone; "" if it was trained with one. ``unresolved`` says why no learning rate of its sweep
    is known to be the best, if so: it then wins and loses nothing. ``name`` is what pages call it, ``key`` what files
    do.
    """

    name: str
    role: str = ""
    optimizer: str = ""
    depth: int = 0
    rows: Sequence[EvalResult] = ()
    settings: Mapping[str, object] = field(default_factory=dict)
    family: str = ""
    seed: int = 0
    unresolved: str = ""
    key: str = ""

    @property
    def file_name(self) -> str:
        """Name in files of rows: ``key``, or ``name`` where there is no key."""
        return self.key or self.name


def families(variants: Iterable[StudyVariant]) -> dict[str, list[StudyVariant]]:
    """Every network by its name without the seed, with the variants that differ in the seed of training alone."""
    together: dict[str, list[StudyVariant]] = {}
    for variant in variants:
        together.setdefault(variant.family or variant.name, []).append(variant)
    return {(seeds[0].name if len(seeds) == 1 else name): seeds for name, seeds in together.items()}


@dataclass(frozen=True)
class Benchmark:
    """The measure of a number, apart from the variant and the block: two rows of one benchmark may be compared."""

    task: str
    metric: str
    dataset: str
    split: str
    setting: str = ""  # read point, norm, resolution and protocol, only where they tell two measures apart

    @property
    def key(self) -> Key:
        """Task, metric, data set and split, as :func:`benchmark_key` of a row."""
        return (self.task, self.metric, self.dataset, self.split)

    def is_of(self, row: EvalResult) -> bool:
        """Whether a row is of this task, metric, data set and split, whatever its setting."""
        return benchmark_key(row) == self.key

    def baseline(self, rows: Iterable[EvalResult]) -> EvalResult | None:
        """The best of the rules that look at no image, among ``rows``."""
        baselines = [row for row in rows if row.is_baseline and self.is_of(row)]
        return max(baselines, key=lambda row: row.ranking_value, default=None)

    @property
    def label(self) -> str:
        """``mIoU, voc2012 val`` and the setting in brackets where there is one; ``k-NN (k = 20), ...``.

        A set whose only split has its name, as that of a JSON has, is named once.
        """
        known = headline(self.task, self.metric)
        spoken = task(self.task).spoken if self.task in TASKS else ""
        metric = f"{spoken} {known.said(self.metric) if known else self.metric}".strip()
        place = " ".join(part for part in dict.fromkeys((self.dataset, self.split)) if part)
        return f"{metric}, {place}" + (f" ({self.setting})" if self.setting else "")


Arranged = dict[Benchmark, dict[str, dict[int, dict[str, EvalResult]]]]  # benchmark -> variant -> epoch -> block -> row
Last = dict[Benchmark, dict[str, dict[str, EvalResult]]]  # the same of each variant's last epoch


def _order(row: EvalResult) -> int | None:
    """The place of a row's metric where results are read; None of lesser metrics, which stay in the long table."""
    known = headline(row.task, row.metric)
    return None if known is None else known.order


def _natural(text: str) -> list[tuple[int, str]]:
    """Sorting key in which k9 comes before k10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", text)]


def benchmark_key(row: EvalResult) -> Key:
    """Task, metric, data set and split."""
    return (row.task, row.metric, row.dataset, row.split)


def setting_of(row: EvalResult) -> tuple[str, str, str, str]:
    """Return what tells two rows of one metric apart: facet, norm, resolution, protocol."""
    return (row.facet, row.norm, row.resolution, row.protocol)


def comparable(row: EvalResult) -> bool:
    """Whether a row may stand in a table: a headline metric of a model, finite, without a note on how it was chosen."""
    return _order(row) is not None and not row.note and not row.is_baseline and math.isfinite(row.value)


def arranged(variants: Variants) -> Arranged:
    """Headline measures (mIoU, CorLoc, k-NN, top-1) in reading order; settings that differ make measures of their own.

    Baselines, rows with a note (such as "best on validation") and values that are not finite are left out; they stay
    in the long table.
    """
    grouped: dict[Key, list[tuple[str, EvalResult]]] = {}
    for variant, rows in variants.items():
        for row in rows:
            if comparable(row):
                grouped.setdefault(benchmark_key(row), []).append((variant, row))
    benchmarks: Arranged = {}
    for key in sorted(grouped, key=lambda key: (_order(grouped[key][0][1]), [_natural(part) for part in key])):
        settings = {setting_of(row) for _, row in grouped[key]}
        differing = [index for index in range(4) if len({setting[index] for setting in settings}) > 1]
        for variant, row in grouped[key]:
            context = (f"read at {row.facet}" if row.facet else "", *setting_of(row)[1:])
            setting = ", ".join(context[index] for index in differing if context[index])
            epochs = benchmarks.setdefault(Benchmark(*key, setting), {}).setdefault(variant, {})
            epochs.setdefault(row.epoch, {})[row.block] = row
    return benchmarks


def last_epochs(variants: Variants) -> Last:
    """Rows of the last epoch at which a variant has the metric: ``{benchmark: {variant: {block: row}}}``."""
    every = arranged(variants)
    last: dict[tuple[Key, str], int] = {}
    for benchmark, rows in every.items():
        for variant, epochs in rows.items():
            place = benchmark.key, variant
            last[place] = max(last.get(place, UNKNOWN_EPOCH), *epochs)
    kept: Last = {}
    for benchmark, rows in every.items():
        for variant, epochs in rows.items():
            epoch = last[benchmark.key, variant]
            if epoch in epochs:
                kept.setdefault(benchmark, {})[variant] = epochs[epoch]
    return kept


def untrained_rows(variants: Variants) -> Last:
    """Rows of epoch 0, random weights, of variants that have later ones: ``{benchmark: {variant: {block: row}}}``."""
    return {
        benchmark: {name: epochs[0] for name, epochs in rows.items() if 0 in epochs and len(epochs) > 1}
        for benchmark, rows in arranged(variants).items()
    }


def values_of(rows: Rows) -> dict[str, float]:
    """The numbers of rows, by their block."""
    return {block: row.value for block, row in rows.items()}


def benchmark_values(variants: Variants) -> dict[Benchmark, dict[str, dict[str, float]]]:
    """Values of :func:`last_epochs`: ``{benchmark: {variant: {block: value}}}``."""
    every = last_epochs(variants)
    return {benchmark: {name: values_of(net) for name, net in rows.items()} for benchmark, rows in every.items()}


PAPERS = "for the probe the protocol paper and the norm final; for TokenCut the keys and tau = 0.2"


def _as_papers(row: EvalResult) -> int:
    """Return how many of a paper's settings a row has."""
    return task(row.task).as_published(row) if row.task in TASKS else 0


def principal(variants: Variants, *, every_read_point: bool = False) -> dict[str, list[EvalResult]]:
    """The rows without those of other settings: one setting (:func:`setting_of`) for each metric and data set.

    It is the one that most variants have; among those the one closest to the papers' (:data:`PAPERS`); among those the
    one that comes first. Rows that may not stand in a table (:func:`comparable`) are left as they are. With
    ``every_read_point`` it is one setting for each facet of them.
    """

    def place(row: EvalResult) -> tuple[Key, str]:
        return benchmark_key(row), row.facet if every_read_point else ""

    kinds: dict[tuple[Key, str], dict[tuple[str, ...], list[tuple[str, EvalResult]]]] = {}
    for variant, rows in variants.items():
        for row in filter(comparable, rows):
            kinds.setdefault(place(row), {}).setdefault(setting_of(row), []).append((variant, row))
    chosen = {
        key: max(seen, key=lambda b: (len({name for name, _ in seen[b]}), _as_papers(seen[b][0][1])))
        for key, seen in kinds.items()
    }
    return {
        name: [row for row in rows if not comparable(row) or setting_of(row) == chosen[place(row)]]
        for name, rows in variants.items()
    }


def one_k_per_dataset(benchmarks: Mapping[Benchmark, T]) -> dict[Benchmark, T]:
    """Keep, of settings such as k-NN's k, the last of each data set: one is enough for a curve."""
    last = {(b.task, b.dataset, b.setting): b for b in benchmarks if _varies(b)}
    return {b: v for b, v in benchmarks.items() if not _varies(b) or last[b.task, b.dataset, b.setting] == b}


def _varies(benchmark: Benchmark) -> bool:
    known = headline(benchmark.task, benchmark.metric)
    return known is not None and known.varies


def single_blocks(values: Mapping[str, float]) -> dict[int, float]:
    """Return single blocks of one variant's values, by number, ascending."""
    return {int(block): values[block] for block in sorted(filter(str.isdigit, values), key=int)}


def best(values: Mapping[str, float]) -> tuple[str, float] | None:
    """The single block with the largest value (the earlier one of equals); None if there is none."""
    single = single_blocks(values)
    if not single:
        return None
    block = max(single, key=lambda number: (single[number], -number))
    return str(block), single[block]


REMEDY = "centre: true, another facet or a higher τ may help (docs/tokencut.md)"
FAILED_NOTE = (
    "† affinity graph degenerate or no cut in most images, which count as misses: TokenCut fails on these features, "
    f"and the number says nothing about the network; {REMEDY}."
)


def spread(row: EvalResult) -> str:
    """``± 0.3 [40.1, 43.9]``: standard deviation over seeds and 95 % interval, each where there is one.

    Where the method failed what is wrong (:func:`failed_cuts`), and no interval; else in how many images there is no
    cut, if there are any.
    """
    if said := failed_cuts(row):
        return said
    deviation = "" if row.deviation is None else f"± {row.deviation:.1f}"
    interval = "" if row.low is None or row.high is None else f"[{row.low:.1f}, {row.high:.1f}]"
    without = round((row.degenerate or 0.0) * row.n)
    return " ".join(filter(None, (deviation, interval, f"(no cut in {without} of {row.n})" if without else "")))


def setting_note(variants: Variants) -> str:
    """Return the setting with which the :func:`principal` rows of each benchmark were made, as one sentence."""
    parts = []
    for benchmark, rows in last_epochs(variants).items():
        first = next(row for model_rows in rows.values() for row in model_rows.values())
        about = ", ".join(
            f"{name} {value}" if name else value
            for name, value in zip(("facet", "norm", "size", ""), setting_of(first), strict=True)
            if value
        )
        parts.append(f"{benchmark.label}: {about or 'as given'}, n = {first.n:,}")
    return "; ".join(parts) + "." if parts else ""


def rows_csv(variants: Variants) -> str:
    """Every row with every field, the variant first, as CSV; what a spreadsheet would run as a formula is quoted."""
    names = [name for name, rows in variants.items() for _ in rows]
    return results.rows_csv([row for rows in variants.values() for row in rows], names)
