"""Result rows arranged for people: one measure against block, the best block of each variant, Markdown and CSV."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dinoskip import results
from dinoskip.results import EvalResult
from visualize.pages import clean

NOT_RUN = "not run"
_HEADLINE = {"miou": 0, "corloc": 1, "top1": 3}  # in this order, k-NN is 2; the others stay in the long table


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


def _rank(row: EvalResult) -> int | None:
    name = row.metric.lower().replace("-", "").replace("_", "")
    if name in _HEADLINE:
        return _HEADLINE[name]
    return 2 if row.task == "knn" else None


def _natural(text: str) -> list[tuple[int, str]]:
    """Sorting key in which k9 comes before k10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", text)]


def _setting(row: EvalResult) -> tuple[str, ...]:
    return (row.facet, row.norm, row.resolution, row.protocol)


def _arranged(variants: Mapping[str, Sequence[EvalResult]]) -> dict[Measure, dict[str, dict[str, EvalResult]]]:
    grouped: dict[tuple[str, str, str, str], list[tuple[str, EvalResult]]] = {}
    order: dict[tuple[str, str, str, str], int] = {}
    for variant, rows in variants.items():
        for row in rows:
            rank = _rank(row)
            if rank is None or row.note or row.is_baseline or not math.isfinite(row.value):
                continue
            key = (row.task, row.metric, row.dataset, row.split)
            grouped.setdefault(key, []).append((variant, row))
            order[key] = rank
    result: dict[Measure, dict[str, dict[str, EvalResult]]] = {}
    for key in sorted(grouped, key=lambda one: (order[one], [_natural(part) for part in one])):
        settings = {_setting(row) for _, row in grouped[key]}
        differing = [index for index in range(4) if len({setting[index] for setting in settings}) > 1]
        last = {variant: max(row.epoch for name, row in grouped[key] if name == variant) for variant, _ in grouped[key]}
        for variant, row in grouped[key]:
            if row.epoch != last[variant]:
                continue
            setting = ", ".join(filter(None, (_setting(row)[index] for index in differing)))
            result.setdefault(Measure(*key, setting), {}).setdefault(variant, {})[row.block] = row
    return result


def measures(variants: Mapping[str, Sequence[EvalResult]]) -> dict[Measure, dict[str, dict[str, float]]]:
    """Headline measures (mIoU, CorLoc, k-NN, top-1) of the last epoch: ``{measure: {variant: {block: value}}}``.

    ``block`` is a number as text, or several joined by + (multiscale). Baselines, rows with a note (such as "best on
    validation") and values that are not finite are left out; they stay in the long table.
    """
    return {
        measure: {variant: {block: row.value for block, row in rows.items()} for variant, rows in found.items()}
        for measure, found in _arranged(variants).items()
    }


def intervals(variants: Mapping[str, Sequence[EvalResult]]) -> dict[Measure, dict[str, dict[str, str]]]:
    """Their 95 % intervals as text, in the same shape; empty where a row has none."""
    return {
        measure: {variant: {block: row.interval for block, row in rows.items()} for variant, rows in found.items()}
        for measure, found in _arranged(variants).items()
    }


def one_vote(found: Mapping[Measure, dict[str, dict[str, float]]]) -> dict[Measure, dict[str, dict[str, float]]]:
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


class Cell(NamedTuple):
    """A number of the best-block table: which block it is of (none: of no model), and its 95 % interval as text."""

    block: str
    value: float
    interval: str = ""


Lines = list[tuple[str, list[Cell | None]]]


def best_table(
    variants: Sequence[str],
    found: Mapping[Measure, Mapping[str, Mapping[str, float]]],
    spread: Mapping[Measure, Mapping[str, Mapping[str, str]]] | None = None,
) -> Lines:
    """For each variant its best single block per measure, and a row per combination of blocks: (label, cells).

    ``spread`` are :func:`intervals`.
    """

    def cell(measure: Measure, variant: str, top: tuple[str, float] | None) -> Cell | None:
        texts = (spread or {}).get(measure, {}).get(variant, {})
        return None if top is None else Cell(*top, texts.get(top[0], ""))

    table: Lines = [
        (variant, [cell(measure, variant, best(found[measure].get(variant, {}))) for measure in found])
        for variant in variants
    ]
    combinations = dict.fromkeys(
        block for values in found.values() for one in values.values() for block in one if not block.isdigit()
    )
    for blocks in combinations:
        for variant in variants:
            row = [found[measure].get(variant, {}).get(blocks) for measure in found]
            pairs = zip(found, row, strict=True)
            cells = [cell(measure, variant, None if value is None else (blocks, value)) for measure, value in pairs]
            table.append((f"{variant}, blocks {blocks}", cells))
    return table


def baseline_table(rows: Sequence[EvalResult], found: Iterable[Measure]) -> Lines:
    """For each baseline among ``rows`` what it scores in each measure: (name, cells)."""
    known = {(row.model, row.task, row.metric, row.dataset, row.split): row for row in rows}
    table: Lines = []
    measured = list(found)
    for name in dict.fromkeys(row.model for row in rows):
        mine = [known.get((name, one.task, one.metric, one.dataset, one.split)) for one in measured]
        cells = [None if row is None else Cell("", row.value, row.interval) for row in mine]
        if any(cells):
            table.append((name, cells))
    return table


def markdown(variants: Mapping[str, Sequence[EvalResult]], baselines: Sequence[EvalResult] = ()) -> str:
    """The best-block table and one per-block table a measure, as GitHub Markdown; baselines below the variants."""
    found, spread = measures(variants), intervals(variants)
    names, floor = list(variants), baseline_table(baselines, found)
    lines = ["# Best block per variant", ""]
    if any(text for one in spread.values() for texts in one.values() for text in texts.values()):
        lines += ["In brackets: the block, and the 95 % interval by the bootstrap over images.", ""]
    lines += _markdown_rows(
        ["variant", *(measure.label for measure in found)],
        [[label, *map(_best_cell, cells)] for label, cells in best_table(names, found, spread)]
        + [[label, *("" if cell is None else _best_cell(cell) for cell in cells)] for label, cells in floor],
    )
    for number, (measure, values) in enumerate(found.items()):
        blocks = sorted({block for name in names for block in single_blocks(values.get(name, {}))})
        lines += ["", f"## {_escape(measure.label)}", ""]
        body = [[name, *(_cell(single_blocks(values.get(name, {})).get(block)) for block in blocks)] for name in names]
        below = [(name, cells[number]) for name, cells in floor]
        body += [[name, *[_cell(cell.value)] * len(blocks)] for name, cell in below if cell]
        lines += _markdown_rows(["block", *map(str, blocks)], body)
    return "\n".join(lines) + "\n"


def _best_cell(cell: Cell | None) -> str:
    if cell is None:
        return NOT_RUN
    about = [f"block {cell.block}"] if cell.block else []
    about += [cell.interval] if cell.interval else []
    return f"{cell.value:.1f}" + (f" ({'; '.join(about)})" if about else "")


def _cell(value: float | None) -> str:
    return NOT_RUN if value is None else f"{value:.1f}"


def _escape(text: str) -> str:
    """Backslash what Markdown or the HTML inside it would interpret."""
    return "".join(f"\\{letter}" if letter in "\\`*_[]<>|#&!" else letter for letter in clean(text))


def _markdown_rows(head: Sequence[str], body: Iterable[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(map(_escape, head)) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(map(_escape, row)) + " |" for row in body]
    return lines


def rows_csv(variants: Mapping[str, Sequence[EvalResult]]) -> str:
    """Every row with every field, the variant first, as CSV; what a spreadsheet would run as a formula is quoted."""
    names = [name for name, rows in variants.items() for _ in rows]
    return results.rows_csv([row for rows in variants.values() for row in rows], names)
