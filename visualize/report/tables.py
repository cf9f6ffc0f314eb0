"""Tables of a report's own rows: the best block of each variant, every block, the settings that are not shown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dinoskip.decisions.failures import failed_cuts
from dinoskip.results.rows import UNKNOWN_EPOCH, EvalResult
from visualize.report.content import PrintedTable
from visualize.rows import (
    FAILED_NOTE,
    PAPERS,
    Benchmark,
    Rows,
    Variants,
    arranged,
    benchmark_key,
    best,
    last_epochs,
    principal,
    setting_note,
    single_blocks,
    spread,
    untrained_rows,
    values_of,
)
from visualize.tables import NOT_RUN, TextTable


@dataclass(frozen=True)
class ReportTables:
    """Every table of a report whose cells are text."""

    answer: TextTable
    silent: TextTable | None
    separated: Sequence[str]
    best: TextTable
    blocks: Sequence[TextTable]
    settings: TextTable | None
    papers: Sequence[PrintedTable]
    verdict: str = ""
    overview: Sequence[TextTable] = ()

    @property
    def beside(self) -> list[TextTable]:
        """The papers as text: their claims, then their tables."""
        return [table.grid for table in self.papers]


class BlockValue(NamedTuple):
    """A number of the best-block table: which block it is of (none: of no model), and :func:`spread`."""

    block: str
    value: float
    spread: str = ""

    @property
    def text(self) -> str:
        """``52.3 [50.0, 54.1] (block 9)``."""
        about = f" (block{'s' if '+' in self.block else ''} {self.block})" if self.block else ""
        return " ".join(filter(None, (f"{self.value:.1f}", self.spread))) + about


class Line(NamedTuple):
    """A line of the best-block table: what it is of, the variant it belongs to (none: a baseline), its cells."""

    label: str
    variant: str
    cells: list[BlockValue | None]


def _best_cell(rows: Rows) -> BlockValue | None:
    top = best(values_of(rows))
    return None if top is None else BlockValue(*top, spread(rows[top[0]]))


def best_lines(variants: Variants) -> list[Line]:
    """Each variant's best single block per benchmark; then every combination of blocks; then earlier epochs."""
    latest, every = last_epochs(variants), arranged(variants)
    lines = [
        Line(name, name, [_best_cell(latest[benchmark].get(name, {})) for benchmark in latest]) for name in variants
    ]
    combinations = dict.fromkeys(
        block for rows in latest.values() for model_rows in rows.values() for block in model_rows if not block.isdigit()
    )
    for blocks in combinations:
        for name in variants:
            several = [latest[benchmark].get(name, {}).get(blocks) for benchmark in latest]
            cells = [None if row is None else BlockValue(blocks, row.value, spread(row)) for row in several]
            lines.append(Line(f"{name}, blocks {blocks}", name, cells))
    for name in variants:
        last = max((epoch for rows in every.values() for epoch in rows.get(name, {})), default=UNKNOWN_EPOCH)
        for epoch in sorted({epoch for rows in every.values() for epoch in rows.get(name, {})} - {last}):
            cells = [_best_cell(every[benchmark].get(name, {}).get(epoch, {})) for benchmark in latest]
            lines.append(Line(f"{name}, epoch {epoch}", name, cells))
    return lines


def baseline_lines(rows: Sequence[EvalResult], benchmarks: Iterable[Benchmark]) -> list[Line]:
    """Return a line for each baseline among ``rows``, with its score on each benchmark."""
    known = {(row.model, *benchmark_key(row)): row for row in rows}
    lines: list[Line] = []
    keys = [benchmark.key for benchmark in benchmarks]
    for name in dict.fromkeys(row.model for row in rows):
        baselines = [known.get((name, *key)) for key in keys]
        cells = [None if row is None else BlockValue("", row.value, spread(row)) for row in baselines]
        if any(cells):
            lines.append(Line(name, "", cells))
    return lines


BEST_NOTE = (
    "Percent; [low, high] is the 95 % interval: Wilson's for shares, the jackknife's over images for mIoU; ± the "
    "standard deviation over seeds. The block is the best on the images shown, so its value is an upper estimate. "
    "Probe rows use the learning rate selected on held-out training images; rows selected on validation are in "
    "rows.csv only, marked as such."
)


def best_grid(variants: Variants, baselines: Sequence[EvalResult] = ()) -> TextTable:
    """The best-block table; baselines, which have no cell for most measures, below the variants."""
    latest = last_epochs(variants)
    lines, floor = best_lines(variants), baseline_lines(baselines, latest)
    rows = [[line.label, *(cell.text if cell else NOT_RUN for cell in line.cells)] for line in lines]
    rows += [[line.label, *(cell.text if cell else "" for cell in line.cells)] for line in floor]
    head = [[("variant", 1), *((benchmark.label, 1) for benchmark in latest)]]
    notes = [BEST_NOTE, setting_note(variants)] if latest else []
    return TextTable("best", "Best block of each variant", head, rows, rules=frozenset({len(lines)}), notes=notes)


def block_grids(variants: Variants, baselines: Sequence[EvalResult] = ()) -> list[TextTable]:
    """One table a benchmark: variants × single blocks; below, their random weights and baselines (of no block)."""
    latest, begun = last_epochs(variants), untrained_rows(variants)
    floor = baseline_lines(baselines, latest)
    grids = []
    for number, (benchmark, rows) in enumerate(latest.items()):
        curves = {name: single_blocks(values_of(rows.get(name, {}))) for name in variants}
        curves |= {f"{name}, epoch 0": single_blocks(values_of(net)) for name, net in begun[benchmark].items()}
        blocks = sorted({block for net in curves.values() for block in net})
        gone = {
            (name, int(row.block))
            for name, net in rows.items()
            for row in net.values()
            if row.block.isdigit() and failed_cuts(row)
        }
        body = [
            [name, *(f"{net[b]:.1f}" + "†" * ((name, b) in gone) if b in net else NOT_RUN for b in blocks)]
            for name, net in curves.items()
        ]
        values = [(line.label, line.cells[number]) for line in floor]
        body += [[label, *[f"{cell.value:.1f}"] * len(blocks)] for label, cell in values if cell]
        head = [[("block", 1), *((str(block), 1) for block in blocks)]]
        rules, notes = frozenset({len(variants), len(curves)}), [FAILED_NOTE] if gone else []
        grids.append(TextTable(f"blocks-{number}", benchmark.label, head, body, rules=rules, notes=notes))
    return [grid for grid in grids if len(grid.columns) > 1]


def others_grid(variants: Variants) -> TextTable | None:
    """The settings that :func:`principal` leaves out: a line a benchmark, best block of each variant; None if none."""
    chosen = principal(variants, every_read_point=True)
    kept = {id(row) for rows in chosen.values() for row in rows}
    others = last_epochs({name: [row for row in rows if id(row) not in kept] for name, rows in variants.items()})
    labels = {
        id(row): benchmark for benchmark, by in last_epochs(variants).items() for o in by.values() for row in o.values()
    }
    rows = []
    for by in others.values():
        benchmark = labels.get(id(next(row for model_rows in by.values() for row in model_rows.values())))
        if benchmark is not None:
            cells = [_best_cell(by.get(name, {})) for name in variants]
            rows.append([benchmark.label, *(cell.text if cell else NOT_RUN for cell in cells)])
    if not rows:
        return None
    note = (
        "The tables above show one setting for each metric and facet: the one that most variants have; in a tie, the "
        f"papers' ({PAPERS})."
    )
    return TextTable(
        "settings", "Other settings, best block", [[("measure", 1), *((n, 1) for n in variants)]], rows, notes=[note]
    )
