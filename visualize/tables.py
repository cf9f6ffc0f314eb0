"""Result rows arranged for people: which rows may be compared, the best block of each variant, tables of both."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from dinoskip import results
from dinoskip.results import EvalResult
from visualize.grids import NOT_RUN, Grid

_HEADLINE = {"miou": 0, "corloc": 1, "top1": 3}  # in this order, k-NN is 2; the others stay in the long table

Variants = Mapping[str, Sequence[EvalResult]]
T = TypeVar("T")
Rows = Mapping[str, EvalResult]  # of one variant and epoch, by block; several blocks are joined by +


@dataclass(frozen=True)
class Measure:
    """What a number is, apart from the variant and the block: two rows of one measure may be compared."""

    task: str
    metric: str
    dataset: str
    split: str
    setting: str = ""  # facet, norm, resolution and protocol, only where they tell two measures apart

    @property
    def label(self) -> str:
        """``mIoU, voc2012 val`` and the setting in brackets where there is one; ``k-NN (k = 20), ...``."""
        votes = re.fullmatch(r".*_k(\d+)", self.metric) if self.task == "knn" else None
        metric = f"k-NN (k = {votes[1]})" if votes else self.metric.replace("top1", "top-1")
        metric = f"retrieval {metric}" if self.task == "retrieve" else metric
        place = " ".join(part for part in (self.dataset, self.split) if part)
        return f"{metric}, {place}" + (f" ({self.setting})" if self.setting else "")


Arranged = dict[Measure, dict[str, dict[int, dict[str, EvalResult]]]]  # measure -> variant -> epoch -> block -> row
Last = dict[Measure, dict[str, dict[str, EvalResult]]]  # the same of each variant's last epoch


def _rank(row: EvalResult) -> int | None:
    name = row.metric.lower().replace("-", "").replace("_", "")
    if name in _HEADLINE:
        return _HEADLINE[name]
    return 2 if row.task == "knn" else None


def _natural(text: str) -> list[tuple[int, str]]:
    """Sorting key in which k9 comes before k10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", text)]


Key = tuple[str, str, str, str]


def _key(row: EvalResult) -> Key:
    return (row.task, row.metric, row.dataset, row.split)


def setting_of(row: EvalResult) -> tuple[str, str, str, str]:
    """What tells two rows of one metric apart: facet, norm, resolution, protocol."""
    return (row.facet, row.norm, row.resolution, row.protocol)


def comparable(row: EvalResult) -> bool:
    """Whether a row may stand in a table: a headline metric of a model, finite, without a note on how it was chosen."""
    return _rank(row) is not None and not row.note and not row.is_baseline and math.isfinite(row.value)


def arranged(variants: Variants) -> Arranged:
    """Headline measures (mIoU, CorLoc, k-NN, top-1) in reading order; settings that differ make measures of their own.

    Baselines, rows with a note (such as "best on validation") and values that are not finite are left out; they stay
    in the long table.
    """
    grouped: dict[Key, list[tuple[str, EvalResult]]] = {}
    for variant, rows in variants.items():
        for row in rows:
            if comparable(row):
                grouped.setdefault(_key(row), []).append((variant, row))
    found: Arranged = {}
    for key in sorted(grouped, key=lambda one: (_rank(grouped[one][0][1]), [_natural(part) for part in one])):
        settings = {setting_of(row) for _, row in grouped[key]}
        differing = [index for index in range(4) if len({setting[index] for setting in settings}) > 1]
        for variant, row in grouped[key]:
            setting = ", ".join(filter(None, (setting_of(row)[index] for index in differing)))
            epochs = found.setdefault(Measure(*key, setting), {}).setdefault(variant, {})
            epochs.setdefault(row.epoch, {})[row.block] = row
    return found


def last_epochs(variants: Variants) -> Last:
    """Rows of the last epoch at which a variant has the metric: ``{measure: {variant: {block: row}}}``."""
    found = arranged(variants)
    last: dict[tuple[Key, str], int] = {}
    for measure, rows in found.items():
        for variant, epochs in rows.items():
            place = (measure.task, measure.metric, measure.dataset, measure.split), variant
            last[place] = max(last.get(place, 0), *epochs)
    kept: Last = {}
    for measure, rows in found.items():
        for variant, epochs in rows.items():
            epoch = last[(measure.task, measure.metric, measure.dataset, measure.split), variant]
            if epoch in epochs:
                kept.setdefault(measure, {})[variant] = epochs[epoch]
    return kept


def starts(variants: Variants) -> Last:
    """Rows of epoch 0, random weights, of variants that have later ones: ``{measure: {variant: {block: row}}}``."""
    return {
        measure: {name: epochs[0] for name, epochs in rows.items() if 0 in epochs and len(epochs) > 1}
        for measure, rows in arranged(variants).items()
    }


def values_of(rows: Rows) -> dict[str, float]:
    """Values by block."""
    return {block: row.value for block, row in rows.items()}


def measures(variants: Variants) -> dict[Measure, dict[str, dict[str, float]]]:
    """Values of :func:`last_epochs`: ``{measure: {variant: {block: value}}}``."""
    found = last_epochs(variants)
    return {measure: {name: values_of(own) for name, own in rows.items()} for measure, rows in found.items()}


PAPERS = "for the probe the protocol paper and the norm final; for TokenCut the keys and tau = 0.2"


def _as_papers(row: EvalResult) -> int:
    """How many of the papers' settings a row has: :data:`PAPERS`."""
    if row.task == "probe":
        return bool(re.match(r"paper\b", row.protocol)) + (row.norm == "final")
    if row.task == "tokencut":
        return bool(re.match(r"tokencut\b.*\btau=0\.2(?!\d)", row.protocol)) + (row.facet == "key")
    return 0


def principal(variants: Variants) -> dict[str, list[EvalResult]]:
    """The rows without those of other settings: one setting (:func:`setting_of`) for each metric and data set.

    It is the one that most variants have; among those the one closest to the papers' (:data:`PAPERS`); among those the
    one that comes first. Rows that may not stand in a table (:func:`comparable`) are left as they are.
    """
    kinds: dict[Key, dict[tuple[str, ...], list[tuple[str, EvalResult]]]] = {}
    for variant, rows in variants.items():
        for row in filter(comparable, rows):
            kinds.setdefault(_key(row), {}).setdefault(setting_of(row), []).append((variant, row))
    chosen = {
        key: max(found, key=lambda one: (len({name for name, _ in found[one]}), _as_papers(found[one][0][1])))
        for key, found in kinds.items()
    }
    return {
        name: [row for row in rows if not comparable(row) or setting_of(row) == chosen[_key(row)]]
        for name, rows in variants.items()
    }


def one_vote(found: Mapping[Measure, T]) -> dict[Measure, T]:
    """The same without all but the last k of each data set's k-NN: one is enough for a curve."""
    last = {measure.dataset: measure for measure in found if measure.task == "knn"}
    return {measure: found[measure] for measure in found if measure.task != "knn" or last[measure.dataset] == measure}


def single_blocks(values: Mapping[str, float]) -> dict[int, float]:
    """Only the single blocks of one variant's values, by number, ascending."""
    return {int(block): values[block] for block in sorted(filter(str.isdigit, values), key=int)}


def best(values: Mapping[str, float]) -> tuple[str, float] | None:
    """The single block with the largest value (the earlier one of equals); None if there is none."""
    single = single_blocks(values)
    if not single:
        return None
    block = max(single, key=lambda one: (single[one], -one))
    return str(block), single[block]


def spread(row: EvalResult) -> str:
    """``± 0.3 [40.1, 43.9]``: standard deviation over seeds and 95 % interval, each where there is one."""
    deviation = "" if row.deviation is None else f"± {row.deviation:.1f}"
    interval = "" if row.low is None or row.high is None else f"[{row.low:.1f}, {row.high:.1f}]"
    return " ".join(filter(None, (deviation, interval)))


class Cell(NamedTuple):
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
    cells: list[Cell | None]


def _best_cell(rows: Rows) -> Cell | None:
    top = best(values_of(rows))
    return None if top is None else Cell(*top, spread(rows[top[0]]))


def best_lines(variants: Variants) -> list[Line]:
    """Each variant's best single block per measure; then every combination of blocks; then earlier epochs."""
    found, every = last_epochs(variants), arranged(variants)
    lines = [Line(name, name, [_best_cell(found[measure].get(name, {})) for measure in found]) for name in variants]
    combinations = dict.fromkeys(
        block for rows in found.values() for own in rows.values() for block in own if not block.isdigit()
    )
    for blocks in combinations:
        for name in variants:
            several = [found[measure].get(name, {}).get(blocks) for measure in found]
            cells = [None if row is None else Cell(blocks, row.value, spread(row)) for row in several]
            lines.append(Line(f"{name}, blocks {blocks}", name, cells))
    for name in variants:
        last = max((epoch for rows in every.values() for epoch in rows.get(name, {})), default=0)
        for epoch in sorted({epoch for rows in every.values() for epoch in rows.get(name, {})} - {last}):
            cells = [_best_cell(every[measure].get(name, {}).get(epoch, {})) for measure in found]
            lines.append(Line(f"{name}, epoch {epoch}", name, cells))
    return lines


def baseline_lines(rows: Sequence[EvalResult], found: Iterable[Measure]) -> list[Line]:
    """For each baseline among ``rows`` what it scores in each measure."""
    known = {(row.model, *_key(row)): row for row in rows}
    lines: list[Line] = []
    measured = list(found)
    for name in dict.fromkeys(row.model for row in rows):
        mine = [known.get((name, one.task, one.metric, one.dataset, one.split)) for one in measured]
        cells = [None if row is None else Cell("", row.value, spread(row)) for row in mine]
        if any(cells):
            lines.append(Line(name, "", cells))
    return lines


BEST_NOTE = (
    "Percent; [low, high] is the 95 % interval by the bootstrap over images, ± the standard "
    "deviation over seeds. The block is the best on the split shown, "
    "so its value is an upper estimate. Probe rows use the learning rate selected on held-out training images; rows "
    "selected on validation are in rows.csv only, marked as such."
)


def setting_note(variants: Variants) -> str:
    """Which setting each measure of :func:`principal` rows was taken with."""
    parts = []
    for measure, rows in last_epochs(variants).items():
        first = next(row for own in rows.values() for row in own.values())
        about = ", ".join(
            f"{name} {value}" if name else value
            for name, value in zip(("facet", "norm", "size", ""), setting_of(first), strict=True)
            if value
        )
        parts.append(f"{measure.label}: {about or 'as given'}, n = {first.n:,}")
    return "; ".join(parts) + "." if parts else ""


def best_grid(variants: Variants, baselines: Sequence[EvalResult] = ()) -> Grid:
    """The best-block table; baselines, which have no cell for most measures, below the variants."""
    found = last_epochs(variants)
    lines, floor = best_lines(variants), baseline_lines(baselines, found)
    rows = [[line.label, *(cell.text if cell else NOT_RUN for cell in line.cells)] for line in lines]
    rows += [[line.label, *(cell.text if cell else "" for cell in line.cells)] for line in floor]
    head = [[("variant", 1), *((measure.label, 1) for measure in found)]]
    notes = [BEST_NOTE, setting_note(variants)] if found else []
    return Grid("best", "Best block of each variant", head, rows, rules=frozenset({len(lines)}), notes=notes)


def block_grids(variants: Variants, baselines: Sequence[EvalResult] = ()) -> list[Grid]:
    """One table a measure: variants × single blocks; below, their random weights and baselines (of no block)."""
    found, begun = last_epochs(variants), starts(variants)
    floor = baseline_lines(baselines, found)
    grids = []
    for number, (measure, rows) in enumerate(found.items()):
        curves = {name: single_blocks(values_of(rows.get(name, {}))) for name in variants}
        curves |= {f"{name}, epoch 0": single_blocks(values_of(own)) for name, own in begun[measure].items()}
        blocks = sorted({block for own in curves.values() for block in own})
        body = [
            [name, *(f"{own[block]:.1f}" if block in own else NOT_RUN for block in blocks)]
            for name, own in curves.items()
        ]
        values = [(line.label, line.cells[number]) for line in floor]
        body += [[label, *[f"{cell.value:.1f}"] * len(blocks)] for label, cell in values if cell]
        head = [[("block", 1), *((str(block), 1) for block in blocks)]]
        grids.append(Grid(f"blocks-{number}", measure.label, head, body, rules=frozenset({len(variants), len(curves)})))
    return [grid for grid in grids if len(grid.columns) > 1]


def others_grid(variants: Variants) -> Grid | None:
    """The settings that :func:`principal` leaves out: a line a measure, best block of each variant; None if none."""
    chosen = principal(variants)
    kept = {id(row) for rows in chosen.values() for row in rows}
    found = last_epochs({name: [row for row in rows if id(row) not in kept] for name, rows in variants.items()})
    labels = {
        id(row): measure for measure, by in last_epochs(variants).items() for o in by.values() for row in o.values()
    }
    rows = []
    for by in found.values():
        measure = labels.get(id(next(row for own in by.values() for row in own.values())))
        if measure is not None:
            cells = [_best_cell(by.get(name, {})) for name in variants]
            rows.append([measure.label, *(cell.text if cell else NOT_RUN for cell in cells)])
    if not rows:
        return None
    note = (
        f"The tables above show one setting of a measure: the one most variants have; of equals the papers' ({PAPERS})."
    )
    return Grid(
        "settings", "Other settings, best block", [[("measure", 1), *((n, 1) for n in variants)]], rows, notes=[note]
    )


def rows_csv(variants: Variants) -> str:
    """Every row with every field, the variant first, as CSV; what a spreadsheet would run as a formula is quoted."""
    names = [name for name, rows in variants.items() for _ in rows]
    return results.rows_csv([row for rows in variants.values() for row in rows], names)
