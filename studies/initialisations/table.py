# Frozen: rows docs/results/initialisations.md, commit 41fd7fa3, 2026-11-25.
"""The page of what has been run: the networks before training, after it, whether the aims are met, and curves."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.pages import cost_line, draw_beside, markdown_table
from dinoskip.io.files import read_json, write_text
from studies.initialisations.candidates import CANDIDATES
from studies.initialisations.plan import MACHINE, MAIN, RATES, SEEDS, Run, all_runs
from visualize.figures.drawing import curve, heading, legend, panels
from visualize.tables import mean_deviation

Results = Mapping[Run, Mapping[str, Any]]
CURVES = "initialisations-blocks"
AIMS = 3
"""How many there are."""
_INTRO = """# Initialisations without skip connections: a search

Written by `python -m studies.initialisations --out DIR --table PAGE.md` from {done} of {all}
runs ({begun}); `python -m studies.initialisations --data IMAGENETTE --out DIR` goes on with the rest, on one core.
{cost}.

A ViT of width 96 with 3 heads, patches of 8, 48 × 48 pixels, learns the ten classes of Imagenette from the CLS token:
300 steps of 32 crops, weight decay 0.05, 10 % warm-up, cosine. *accuracy* and *k-NN* (20 neighbours) are of 2,368
held-out training images (one standard error: 1 point); learning rates are chosen by the 600 validation images with
seed 0. *dense* is the mIoU of a linear probe of the patches of a block, on the embedded scenes (7 classes; all
background: 11.8). *cosine* is between patches of an image, *CLS* between images, both at the last block; *gradients*
is the largest norm of a block's gradient over the smallest. Every name is a function of
`studies/initialisations/candidates.py`, which says what it does; `skip` alone has skip connections. These are
short runs of a small network; larger networks may behave differently.
"""


@dataclass(frozen=True)
class Trained:
    """A candidate under one optimizer at its best rate: the results of its seeds."""

    name: str
    optimizer: str
    lr: float
    tried: int
    results: tuple[Mapping[str, Any], ...]

    def mean(self, value: str, block: int | None = None) -> float:
        """Mean over seeds of a value, or of one block's (from 1; -1 is the last); NaN where all failed."""
        values = self.values(value, block)
        return statistics.mean(values) if values else math.nan

    def values(self, value: str, block: int | None = None) -> list[float]:
        """A value of every seed that did not fail."""
        whole = [result[value] for result in self.results if "failed" not in result]
        return whole if block is None else [by_block[block - 1 if block > 0 else block] for by_block in whole]

    def shown(self, value: str, block: int | None = None, digits: int = 1) -> str:
        """Mean ± deviation over seeds; the mean alone of one; a dash where all failed."""
        values = self.values(value, block)
        return mean_deviation(values, digits) if values else "not finite"


def trained(results: Results, depth: int = 12) -> list[Trained]:
    """Every candidate and optimizer that has runs, at the rate of the highest validation accuracy with seed 0."""
    rows = []
    for name in CANDIDATES:
        for kind, rates in RATES.items():
            first = {rate: run for rate in rates if (run := results.get(Run(name, kind, rate, 0, depth))) is not None}
            if first:
                lr = max(first, key=lambda rate: float(first[rate].get("val_accuracy", -1.0)))
                rows.append(Trained(name, kind, lr, len(first), _seeds(results, Run(name, kind, lr, 0, depth))))
    return rows


def _seeds(results: Results, of: Run) -> tuple[Mapping[str, Any], ...]:
    """The results of a run with all seeds that there are."""
    return tuple(result for run, result in results.items() if replace(run, seed=0) == replace(of, seed=0))


def fresh(out: Path, depth: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the measurements of every candidate before training, with seed 0."""
    for name in CANDIDATES:
        path = out / Run(name, "adamw", 1.0, 0, depth).fresh_file
        if path.is_file():
            yield name, read_json(path)


def fresh_table(out: Path, depth: int) -> list[str]:
    """Table before training, a line a candidate."""
    shown = sorted({1, depth // 4, depth // 2, 3 * depth // 4, depth})
    columns = ["initialisation", *(f"dense {block}" for block in shown), "cosine", "CLS", "gradients", "k-NN"]
    rows = [
        [
            name, *(f"{seen['probe_miou'][block - 1]:.1f}" for block in shown), f"{seen['token_cosine'][-1]:.2f}",
            f"{seen['cls_cosine'][-1]:.2f}", f"{seen['gradient_ratio'] or math.inf:.1f}", f"{seen['knn']:.1f}",
        ]
        for name, seen in fresh(out, depth)
    ]  # fmt: skip
    return markdown_table(columns, rows) if rows else []


def trained_table(rows: Sequence[Trained], depth: int) -> list[str]:
    """Table after training, a line a candidate and optimizer."""
    columns = ["initialisation", "optimizer", "rate (of tried)", "seeds", "accuracy", "k-NN", "dense 1",
               f"dense {depth // 2}", f"dense {depth}", "cosine", "CLS"]  # fmt: skip
    body = [
        [
            row.name, row.optimizer, f"{row.lr:g} ({row.tried})", str(len(row.results)), row.shown("accuracy"),
            row.shown("knn"), row.shown("probe_miou", 1), row.shown("probe_miou", depth // 2),
            row.shown("probe_miou", -1), row.shown("token_cosine", -1, 2), row.shown("cls_cosine", -1, 2),
        ]
        for row in rows
    ]  # fmt: skip
    return markdown_table(columns, body) if body else []


def aims(results: Results) -> list[str]:
    """Return a table of the aims that each candidate meets.

    The aims are dense features within 3 points of skip's, the paper's accuracy, and that accuracy at the rate of skip.
    """
    rows = trained(results)
    at = {(row.name, row.optimizer): row for row in rows}
    body = []
    for row in rows:
        skip, paper = at.get(("skip", row.optimizer)), at.get(("paper", row.optimizer))
        if row.name in {"skip", "default", "paper"} or skip is None or paper is None:
            continue
        there = replace(row, lr=skip.lr, results=_seeds(results, Run(row.name, row.optimizer, skip.lr, 0)))
        (gap, more), (gap_there, more_there) = (
            (row.mean("probe_miou", -1) - skip.mean("probe_miou", -1), row.mean("accuracy") - paper.mean("accuracy"))
            for row in (row, there)
        )
        met = [gap >= -3, more >= 0, more_there >= 0]
        seeds = f" ({len(there.results)})" if there.values("accuracy") else ""
        shown = [f"{value:+.1f}{seeds}" if seeds else "–" for value in (more_there, gap_there)]
        body.append([row.name, row.optimizer, f"{gap:+.1f}", f"{more:+.1f}", *shown, str(sum(met))])
    columns = ["initialisation", "optimizer", "dense last − skip's", "accuracy − paper's",
               "accuracy − paper's, skip's rate (seeds)", "dense last − skip's, skip's rate (seeds)",
               "aims met"]  # fmt: skip
    if not body:
        return []
    whole = [f"*{row[0]}* with {row[1]}" for row in body if int(row[-1]) == AIMS]
    table = markdown_table(columns, sorted(body, key=lambda row: -int(row[-1])))
    return [*table, f"All three aims are met by {'; '.join(whole) or 'none'}.", ""]


def summary(rows: Sequence[Trained], deep: Sequence[Trained]) -> list[str]:
    """Return a line for each optimizer and depth, on candidates with all seeds at 12 blocks and on all at 24."""
    lines = []
    for kind in RATES:
        whole = [row for row in rows if row.optimizer == kind and len(row.results) == len(SEEDS)]
        for depth, of_depth in ((12, whole), (24, [row for row in deep if row.optimizer == kind])):
            at = {row.name: row for row in of_depth}
            without = [row for row in of_depth if row.name != "skip" and row.values("accuracy")]
            if not without or "skip" not in at:
                continue
            accurate = max(without, key=lambda row: row.mean("accuracy"))
            dense = max(without, key=lambda row: row.mean("probe_miou", -1))
            paper = f", paper {at['paper'].shown('accuracy')}" if "paper" in at and accurate.name != "paper" else ""
            lines.append(
                f"- **{kind}, {depth} blocks**: the most accurate network without skips is *{accurate.name}*, "
                f"{accurate.shown('accuracy')} (skip {at['skip'].shown('accuracy')}{paper}); *{dense.name}* has the "
                f"best dense features in the last block, {dense.shown('probe_miou', -1)} "
                f"(skip {at['skip'].shown('probe_miou', -1)})."
            )
    return [*lines, ""] if lines else []


def draw(results: Results, out: Path, place: Path) -> str:
    """Curves by block into ``place``; the Markdown that shows them."""
    names = [name for name in CANDIDATES if name in MAIN]
    before = {name: seen for name, seen in fresh(out, 12) if name in MAIN}
    rows = {(row.name, row.optimizer): row for row in trained(results)}

    def picture() -> Any:
        figure, grid = panels(6)
        for column, value in enumerate(("probe_miou", "token_cosine")):
            titles = ("before training", "after, AdamW", "after, SOAP")
            for line, (title, kind) in enumerate(zip(titles, (None, "adamw", "soap"), strict=True)):
                axes = grid[3 * column + line]
                heading(axes, f"{'dense probe, mIoU' if value == 'probe_miou' else 'token cosine'}: {title}")
                for number, name in enumerate(names):
                    row = rows.get((name, kind or ""))
                    if kind is None and name in before:
                        points = dict(enumerate(before[name][value], 1))
                    elif row is not None and row.values(value):
                        points = {block: row.mean(value, block) for block in range(1, 13)}
                    else:
                        continue
                    curve(axes, points, number, name)
                axes.set_xlabel("block")
        legend(figure, grid, names)
        return figure

    alt = "Dense probe and token cosine by block, before and after training, of the main initialisations"
    return draw_beside(place, CURVES, picture, alt)


def write_page(results: Results, out: Path, page: Path) -> None:
    """Write ``page`` and its curves beside it, from ``results`` and what lies in ``out``."""
    every = list(all_runs(out))
    begun = "whole" if len(results) >= len(every) else "not finished"
    rows, deep = trained(results), trained(results, 24)
    cost = cost_line(
        sum(result.get("seconds", 0.0) for result in results.values()), read_json(out / MACHINE),
        max(((out / run.file).stat().st_mtime for run in results), default=0.0),
    )  # fmt: skip
    lines = [_INTRO.format(done=len(results), all=len(every), begun=begun, cost=cost)]
    met = aims(results)
    if said := summary(rows, deep):
        lines += ["## What came out", "", *said, *met[-2:]]
    lines += ["## Before training, 12 blocks, seed 0", "", *fresh_table(out, 12)]
    lines += ["## After training, each at the best of its rates", "", *trained_table(rows, 12)]
    lines += [
        "## The aims",
        "",
        "Dense features of the last block at most 3 points below skip's, accuracy not below the paper's, each at its "
        "best rate and with the same optimizer; and that it trains at the rate of skip: accuracy there not below the "
        "paper's at the paper's best. What dense features are at that rate is shown, too.",
        "",
        *(met or ["The runs of skip and paper that they are held to are not there yet.", ""]),
    ]
    if deep:
        lines += ["## 24 blocks", "", *fresh_table(out, 24), *trained_table(deep, 24)]
    page.parent.mkdir(parents=True, exist_ok=True)
    lines += ["## By block", "", draw(results, out, page.parent)]
    write_text(page, "\n".join(lines) + "\n")
