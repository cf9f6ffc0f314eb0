"""Comparison of the cells of the printed tables that a run has filled with those that its study should fill."""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

from dinoskip.io.files import read_text
from dinoskip.pipeline.rehearsal.filled import Expected, is_number, printed_lines
from dinoskip.pipeline.report.places import label_of, published_names, role_of
from dinoskip.pipeline.sections import StudyBase
from dinoskip.pipeline.variants import Variant
from dinoskip.pipeline.words import variant_words
from dinoskip.results.rows import EvalResult, read_rows
from dinoskip_papers.others import OTHERS
from dinoskip_papers.published import EPOCHS, PUBLISHED, PublishedNumber

_NEAR = 0.06  # half of the last digit that pages print, and a little


def cells_by_role(name: str, study: StudyBase, variants: Sequence[Variant], folder: Path) -> Iterator[tuple[bool, str]]:
    """Cells of a table of "Cutting the Skip": each that the study has a network for, and each of another's."""
    values = {f"{row.value:.6g}" for row in _rows(folder)}
    written = read_text(folder / "report" / "tables" / f"{name.replace('.', '-')}.csv")
    lines = list(csv.DictReader(written.splitlines()))
    cells = [cell for _, own in PUBLISHED[name].rows for cell in own]
    if len(cells) != len(lines):
        yield False, f"{len(lines)} lines for {len(cells)} cells"
    for cell, line in zip(cells, lines, strict=False):
        about = f"{line['row']}, {line['column']}: {line['ours']!r}"
        number = re.fullmatch(r"-?[\d.]+(e-?\d+)?", line["ours"])
        if _fits(cell, study, variants):
            yield number is not None and f"{float(line['ours']):.6g}" in values, about
        elif number:
            yield False, f"{about} is not of a network of this study"


def _rows(folder: Path) -> list[EvalResult]:
    """The rows of a study's folder; none where nothing was measured."""
    return read_rows(folder / "rows.json") if (folder / "rows.json").is_file() else []


def _fits(cell: PublishedNumber, study: StudyBase, variants: Sequence[Variant]) -> bool:
    """Whether a study has what stands in a published cell: network, data set, epoch, kind of features."""
    expected = Expected(study, tuple(variants))
    same = [one for one in variants if one.model is not None and one.optimizer is not None
            and role_of(one.model) == cell.role and one.optimizer.name == cell.optimizer.lower()]  # fmt: skip
    depth = cell.depth or max((one.depth or 0 for one in same), default=0)
    names = published_names(study.data)
    measured = {(task, names.get(dataset, "")) for task, dataset in expected.measures()}
    measured |= {("classify", "ImageNet")} if expected.supervised else set()
    recipe = expected.recipe
    epoch = round(cell.epoch / EPOCHS * recipe.epochs) in expected.epochs if recipe else False
    several = not cell.several or study.evaluate.multiscale is not None
    return any(one.depth == depth for one in same) and (cell.task, cell.dataset) in measured and epoch and several


def cells_by_label(
    name: str, study: StudyBase, variants: Sequence[Variant], folder: Path
) -> Iterator[tuple[bool, str]]:
    """Cells of another paper's table: what was measured stands in it, by label, and nothing else of ours."""
    table, measured = OTHERS[name], _measured(variants, folder)
    text = read_text(folder / "report" / "report.md")
    printed = {line["variant"]: line for line in printed_lines(text, table.title)}
    for label, (heading, key) in itertools.product(table.rows, table.measures):
        ours, known = printed.get(label, {}).get(heading), measured.get(label, {}).get(key)
        about = f"{label}, {heading}: {ours!r}, measured {known!r}"
        if known is not None:
            yield is_number(ours) and abs(_first_of(ours) - known) < _NEAR, about
        elif is_number(ours):
            yield False, about


def _measured(variants: Sequence[Variant], folder: Path) -> dict[str, dict[str, float]]:
    """Return a run's measurements, by label and by the key of a table.

    They are ln κ of the tokens and accuracies of the last epoch, each the mean over the seeds.
    """
    text = read_text(folder / "report" / "report.md")
    tokens = {line["variant"]: line for line in printed_lines(text, "Condition of the tokens, ln κ")}
    words = variant_words(tuple(variants))
    rows = sorted((row for row in _rows(folder) if row.task == "classify"), key=lambda row: row.epoch)
    seeds: dict[str, dict[str, list[float]]] = {}
    for variant in variants:
        line = tokens.get(words[variant.name], {})
        own = {f"ln κ {side}": float(value) for side, value in line.items() if is_number(value)}
        for row in (row for row in rows if row.model == variant.name):
            own |= {row.metric: row.value, f"{row.metric} {row.dataset}": row.value}
        for key, value in own.items():
            seeds.setdefault(label_of(variant), {}).setdefault(key, []).append(value)
    return {label: {key: fmean(values) for key, values in own.items()} for label, own in seeds.items()}


def _first_of(text: str | None) -> float:
    """The number that a page's cell begins with: a mean, before its deviation, interval and number of seeds."""
    return float(str(text).partition(" ")[0].replace("−", "-"))
