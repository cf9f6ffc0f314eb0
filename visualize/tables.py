"""Result rows arranged for people: one measure against block, the best block of each variant, Markdown and CSV."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields

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


def measures(variants: Mapping[str, Sequence[EvalResult]]) -> dict[Measure, dict[str, dict[str, float]]]:
    """Headline measures (mIoU, CorLoc, k-NN, top-1) of the last epoch: ``{measure: {variant: {block: value}}}``.

    ``block`` is a number as text, or several joined by + (multiscale). Rows with a note (such as "best on
    validation") and values that are not finite are left out; they stay in the long table.
    """
    grouped: dict[tuple[str, str, str, str], list[tuple[str, EvalResult]]] = {}
    order: dict[tuple[str, str, str, str], int] = {}
    for variant, rows in variants.items():
        for row in rows:
            rank = _rank(row)
            if rank is None or row.note or not math.isfinite(row.value):
                continue
            key = (row.task, row.metric, row.dataset, row.split)
            grouped.setdefault(key, []).append((variant, row))
            order[key] = rank
    result: dict[Measure, dict[str, dict[str, float]]] = {}
    for key in sorted(grouped, key=lambda one: (order[one], [_natural(part) for part in one])):
        settings = {_setting(row) for _, row in grouped[key]}
        differing = [index for index in range(4) if len({setting[index] for setting in settings}) > 1]
        last = {variant: max(row.epoch for name, row in grouped[key] if name == variant) for variant, _ in grouped[key]}
        for variant, row in grouped[key]:
            if row.epoch != last[variant]:
                continue
            setting = ", ".join(filter(None, (_setting(row)[index] for index in differing)))
            result.setdefault(Measure(*key, setting), {}).setdefault(variant, {})[row.block] = row.value
    return result


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


def best_table(
    variants: Sequence[str], found: Mapping[Measure, Mapping[str, Mapping[str, float]]]
) -> list[tuple[str, list[tuple[str, float] | None]]]:
    """For each variant its best single block per measure, and a row per combination of blocks: (label, cells)."""
    table: list[tuple[str, list[tuple[str, float] | None]]] = [
        (variant, [best(found[measure].get(variant, {})) for measure in found]) for variant in variants
    ]
    combinations = dict.fromkeys(
        block for values in found.values() for one in values.values() for block in one if not block.isdigit()
    )
    for blocks in combinations:
        for variant in variants:
            row = [found[measure].get(variant, {}).get(blocks) for measure in found]
            cells = [None if value is None else (blocks, value) for value in row]
            table.append((f"{variant}, blocks {blocks}", cells))
    return table


def markdown(variants: Mapping[str, Sequence[EvalResult]]) -> str:
    """The best-block table and one per-block table a measure, as GitHub Markdown."""
    found = measures(variants)
    names = list(variants)
    lines = ["# Best block per variant", ""]
    lines += _markdown_rows(
        ["variant", *(measure.label for measure in found)],
        [
            [label, *(NOT_RUN if cell is None else f"{cell[1]:.1f} (block {cell[0]})" for cell in cells)]
            for label, cells in best_table(names, found)
        ],
    )
    for measure, values in found.items():
        blocks = sorted({block for name in names for block in single_blocks(values.get(name, {}))})
        lines += ["", f"## {_escape(measure.label)}", ""]
        body = [[name, *(_cell(single_blocks(values.get(name, {})).get(block)) for block in blocks)] for name in names]
        lines += _markdown_rows(["block", *map(str, blocks)], body)
    return "\n".join(lines) + "\n"


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
    stream = io.StringIO()
    names = [field.name for field in fields(EvalResult)]
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["variant", *names])
    for variant, rows in variants.items():
        for row in rows:
            entry = asdict(row)
            writer.writerow([_plain(value) for value in (variant, *(entry[name] for name in names))])
    return stream.getvalue()


def _plain(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return ""
    if isinstance(value, str) and value[:1] in {"=", "+", "-", "@", "\t", "\r"}:
        return "'" + value
    return value
