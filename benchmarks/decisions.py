"""Rates at which a report is wrong and at which it finds a difference: made-up studies through the code of the pages.

    python -m benchmarks.decisions --table docs/report.md       # about 20 minutes on one core
    python -m benchmarks.decisions --pages 40 --samples 40      # quicker and coarser

A made-up study has networks on measures of every kind that rows have (:mod:`benchmarks.made_up`), of n units and some
seeds of training. Rows are made by the functions that evaluations make them with, and go through
:func:`visualize.report.answer.answers`, which the report prints, or :func:`dinoskip_papers.claims.claims`. **Equal**
networks have the same expected score over trainings: a page that calls any of them better or worse, or of one training
each higher or lower, is a false positive. Every training has its luck, a shift of its expected score; so have networks
of one training each, which do not show how large the luck is. **Different**: one network is better by a number of
standard errors.

Intervals are checked against the value that they estimate: a difference's expected value, over trainings where there
are several, and that of the two trainings where there is one each (their luck is then 0); and for a score, that of all
images there are.
"""

from __future__ import annotations

import argparse
import math
import platform
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

import numpy as np

from benchmarks.made_up import ON_PAGES, blank, expected, images, row_of, unit
from benchmarks.miou_intervals import CLASSES, miou_lines, miou_table
from benchmarks.pages import markdown_table
from dinoskip.io.files import write_text
from dinoskip.results.estimates import least_gap
from dinoskip.results.records import ImageRecords
from dinoskip.results.rows import EvalResult
from dinoskip.runtime.environment import describe
from dinoskip_papers.claims import Comparison, claims
from dinoskip_papers.compare import ComparedStudy
from visualize.comparison import Scores
from visualize.report.answer import AnswerLine, answers
from visualize.rows import INITIALISED, SKIP, StudyVariant

Result = TypeVar("Result")
UNITS = (6, 12, 60, 216, 1449)
SEEDS = (1, 2, 3, 5)
BEGIN, END = "<!-- rates: begin -->", "<!-- rates: end -->"


@dataclass(frozen=True)
class Made:
    """A made-up study: ``lines`` comparisons with a network with skips, each network with some seeds.

    The measures are of ``kinds`` in turn, each with ``networks`` - 1 lines. ``spread`` is the standard deviation of the
    luck of training and ``gap`` how much the networks without skips are better, in standard errors of the difference of
    two scores of different units; ``ratio`` is how much larger the luck of the networks without skips is; ``common``
    the share of a network's variance over units that its seeds have in common; ``blocks`` equally good ones, of which
    one is chosen; ``gained`` what training adds to all, None if the start is not known; without ``recorded`` there are
    intervals and no records.
    """

    units: int
    seeds: int = 1
    spread: float = 1.0
    ratio: float = 1.0
    gap: float = 0.0
    blocks: int = 1
    lines: int = 24
    common: float = 0.5
    gained: float | None = None
    recorded: bool = True
    kinds: tuple[str, ...] = ON_PAGES
    networks: int = 2


def study(design: Made, rng: np.random.Generator) -> tuple[list[StudyVariant], Scores]:
    """Rows and records of a study: a network with skips and others without, on as many measures as are needed."""
    ids = tuple(f"{unit:06}" for unit in range(design.units))
    rows: dict[str, list[EvalResult]] = {}
    records: dict[EvalResult, ImageRecords] = {}
    for measure in range(design.lines // (design.networks - 1)):
        kind = design.kinds[measure % len(design.kinds)]
        for row, values in measured(design, kind, f"set{measure}", rng):
            rows.setdefault(row.model, []).append(row)
            if design.recorded and values is not None:
                records[row] = ImageRecords(ids, values)
    variants = []
    for name, of_network in rows.items():
        family, _, seed = name.partition("-s")
        role = INITIALISED if int(family) else SKIP
        variants.append(StudyVariant(name, role, "soap", 12, of_network, family=family, seed=int(seed)))
    return variants, Scores(rows, records)


def measured(design: Made, kind: str, dataset: str, rng: np.random.Generator) -> list[tuple[EvalResult, object]]:
    """Rows of one measure with their records, None without: of every network, seed, epoch and block.

    Half of what a unit scores all networks share, a part of the rest the seeds of a network.
    """
    shown, step = images(kind, design.units, rng), unit(kind, design.units)
    made = []
    for network in range(design.networks):
        of_network = rng.standard_normal((design.blocks, design.units))
        for seed in range(design.seeds):
            luck = design.spread * (design.ratio if network else 1.0) * rng.standard_normal()
            for epoch in (0, 1) if design.gained is not None else (1,):
                shift = luck + (design.gap if network else 0.0) - (0.0 if epoch else design.gained or 0.0)
                for block in range(design.blocks):
                    alone = rng.standard_normal(design.units)
                    own = math.sqrt(design.common) * of_network[block] + math.sqrt(1 - design.common) * alone
                    about = {"block": str(block + 1), "dataset": dataset, "epoch": epoch, "model": f"{network}-s{seed}"}
                    like = replace(blank(kind, design.units), **about)
                    found = row_of(kind, shown, (shown.hard + own) / math.sqrt(2) + shift * step, rng, like)
                    made.append((found.row, found.values))
    return made


def page(design: Made, rng: np.random.Generator) -> list[AnswerLine]:
    """The lines of a study's answer."""
    variants, scores = study(design, rng)
    return [line for answer in answers(variants, scores) for line in answer.lines]


def claimed(design: Made, rng: np.random.Generator) -> list[Comparison]:
    """Compare the networks of a made study by each of the paper's claims."""
    variants, scores = study(design, rng)
    return [comparison for claim in claims(ComparedStudy(variants), scores) for comparison in claim.comparisons]


@dataclass(frozen=True)
class Rates:
    """Shares, in percent, of pages with a verdict, of lines with one, of the differences' intervals that hold 0, and of
    lines without an interval."""

    pages: float
    lines: float
    coverage: float
    without: float


def rates(design: Made, pages: int, seed: int = 0) -> Rates:
    """Write ``pages`` studies. Coverage is nan where networks differ, and of one seed each where there is luck."""
    rng = np.random.default_rng([seed, design.units, design.seeds, design.blocks])
    lines = [page(design, rng) for _ in range(pages)]
    apart = [line.difference for of_page in lines for line in of_page]
    given = [found for found in apart if found is not None and not math.isnan(found.low) and not found.unsure]
    known = given and not design.gap and (design.seeds > 1 or not design.spread)
    return Rates(
        100 * float(np.mean([any(line.sign for line in of_page) for of_page in lines])),
        100 * float(np.mean([line.sign != 0 for of_page in lines for line in of_page])),
        100 * float(np.mean([found.low <= 0 <= found.high for found in given])) if known else math.nan,
        100 * (1 - len(given) / len(apart)),
    )


_LINES = 8
_PAIR = ("CorLoc", "PCK")
CASES: Sequence[tuple[str, Made]] = (
    *((f"24 lines of mIoU, {classes} classes, {units} units, {seeds}",
       Made(units, int(seeds[0]), kinds=(f"mIoU {classes}",)))
      for classes in (21, 150) for units in (6, 12) for seeds in ("1 seed", "3 seeds")),
    *((f"8 lines of {kind}, {units} units, {seeds}", Made(units, int(seeds[0]), kinds=(kind,), lines=_LINES))
      for kind in ("J&F", "AP", "delta1", "normals") for units in (12, 30) for seeds in ("1 seed", "3 seeds")),
    ("24 lines, 60 units, 1 seed", Made(60)),
    ("24 lines, 60 units, 3 seeds", Made(60, 3)),
    ("four networks against one, 60 units, 1 seed", Made(60, kinds=_PAIR, lines=_LINES, networks=5)),
    ("24 lines, 6 units, 10 seeds that hardly differ", Made(6, 10, 0.1, common=0.9, kinds=_PAIR, networks=5)),
    ("spreads over seeds 1 : 50, 2 seeds", Made(60, 2, 0.05, ratio=50.0, kinds=_PAIR, networks=5)),
    ("spreads over seeds 1 : 50, 3 seeds", Made(60, 3, 0.05, ratio=50.0, kinds=_PAIR, networks=5)),
    ("best of 4 equal blocks, 60 units, 1 seed", Made(60, blocks=4, lines=_LINES, kinds=_PAIR)),
    ("best of 4 equal blocks, 60 units, 3 seeds", Made(60, 3, blocks=4, lines=_LINES, kinds=_PAIR)),
    ("3 units, 1 seed", Made(3, lines=_LINES)),
    ("intervals without records, 60 units, 1 seed", Made(60, lines=_LINES, recorded=False)),
    ("intervals without records, 60 units, 3 seeds", Made(60, 3, lines=_LINES, recorded=False)),
    ("a gap that was there before training, nothing gained",
     Made(216, 3, 0.1, gap=9.0, gained=0.0, lines=_LINES, kinds=_PAIR)),
)  # fmt: skip


def of_each(made: Callable[..., Result], given: Sequence[tuple[object, ...]], jobs: int) -> list[Result]:
    """Return the result of ``made`` for each of ``given``, in ``jobs`` processes; every one has a seed of its own."""
    if jobs == 1:
        return [made(*arguments) for arguments in given]
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        return list(pool.map(made, *zip(*given, strict=True)))


def rates_tables(pages: int, samples: int, jobs: int = 1) -> list[str]:
    """The tables of docs/report.md; ``pages`` studies and ``samples`` of images each."""
    cells = [(units, seeds, pages if units < 1000 else max(10, pages // 3)) for units in UNITS for seeds in SEEDS]
    none = of_each(rates, [(Made(units, seeds, lines=_LINES), count) for units, seeds, count in cells], jobs)
    still = of_each(
        rates, [(Made(units, 1, 0.0, lines=_LINES), count) for units, _, count in cells[:: len(SEEDS)]], jobs
    )
    gap = [(Made(units, seeds, 0.3, gap=5.0, lines=_LINES), max(10, count // 10)) for units, seeds, count in cells]
    found = [round(rate.lines) for rate in of_each(rates, gap, jobs)]
    equal, different = [], []
    for row, units in enumerate(UNITS):
        texts = []
        for column in range(len(SEEDS)):
            at = row * len(SEEDS) + column
            wrong, coverage = none[at].pages, (none[at] if column else still[row]).coverage
            error = math.sqrt(wrong * (100 - wrong) / cells[at][2])
            texts.append(f"{wrong:.1f} ± {error:.1f}, {coverage:.0f}, {none[at].without:.0f}")
        equal.append([str(units), *texts])
        different.append([str(units), *map(str, found[row * len(SEEDS) : (row + 1) * len(SEEDS)])])
    head = ("units", *(f"{seeds} seed{'s' if seeds > 1 else ''}" for seeds in SEEDS))
    return [
        f"Equal networks, the luck of a training one standard error: percent of pages of {_LINES} lines, of a kind "
        f"each ({', '.join(ON_PAGES)}), with a verdict, ± its standard error; percent of the differences' intervals "
        "that hold the difference (with one seed that of the two trainings); percent of lines without an interval.",
        "", *markdown_table(head, equal),
        "One network better by 5 standard errors of a difference, the luck of a training a third of one: percent of "
        "lines with a verdict.",
        "", *markdown_table(head, different),
        *power_table(), *special_table(pages // 3, jobs), *score_table(samples, jobs), *miou_tables(samples, jobs),
    ]  # fmt: skip


def power_table() -> list[str]:
    """The smallest gaps that are likely to be decided (:func:`dinoskip.results.estimates.least_gap`)."""
    lines = [[str(count), *(f"{least_gap(seeds, count):.1f}" for seeds in (2, 3, 4, 5, 10))] for count in (1, 8, 24)]
    head = ("comparisons of the page", *(f"{seeds} seeds" for seeds in (2, 3, 4, 5, 10)))
    text = "The gap that is decided with a probability of 80 %, in standard deviations over seeds, of many images:"
    return [text, "", *markdown_table(head, lines)]


def special_table(pages: int, jobs: int) -> list[str]:
    """Pages of equal networks with a verdict, by kind of study."""
    found = of_each(rates, [(design, pages) for _, design in CASES], jobs)
    lines = [[name, f"{rate.pages:.1f}"] for (name, _), rate in zip(CASES, found, strict=True)]
    for seeds, wrong in zip((1, 3), of_each(wrong_claims, [(1, pages), (3, pages)], jobs), strict=True):
        lines.append([f"the paper's claims, 60 units, {seeds} seed{'s' if seeds > 1 else ''}", f"{wrong:.1f}"])
    return ["Percent of pages of equal networks with a verdict:", "", *markdown_table(("study", "pages"), lines)]


def wrong_claims(seeds: int, pages: int) -> float:
    """Percent of pages of the paper's claims on which a comparison of equal networks counts."""
    rng = np.random.default_rng(seeds)
    design = Made(60, seeds, lines=_LINES, kinds=_PAIR, networks=5)
    judged = [claimed(design, rng) for _ in range(pages)]
    return 100 * float(np.mean([any(comparison.sign for comparison in comparisons) for comparisons in judged]))


SCORED: Sequence[tuple[str, str, float]] = (
    ("CorLoc 50 %", "CorLoc", 0.0), ("CorLoc 5 %", "CorLoc", -1.645), ("CorLoc 98 %", "CorLoc", 2.054),
    ("PCK", "PCK", 0.0), ("delta1, 8 % of the images fail", "delta1", 0.0), ("delta1, 2 % fail", "delta1", 0.649),
    ("RMSE, lognormal", "RMSE", 0.0), ("J&F", "J&F", 0.0), ("J&F, high", "J&F", 1.5), ("normals, low", "normals", 0.0),
)  # fmt: skip
"""Name, kind, and shift of the merit, of scores whose intervals are held against all images."""


def score_coverage(kind: str, shift: float, units: int, samples: int) -> tuple[float, float]:
    """Percent of samples of ``units`` with an interval of the score, and of these that hold the score of all images."""
    rng, truth, held = np.random.default_rng([units, 7]), expected(kind, shift), []
    for _ in range(samples):
        shown = images(kind, units, rng)
        merit = (shown.hard + rng.standard_normal(units)) / math.sqrt(2) + shift
        row = row_of(kind, shown, merit, rng, blank(kind, units)).row
        if row.low is not None and row.high is not None and not math.isnan(row.low):
            held.append(row.low <= truth <= row.high)
    return 100 * len(held) / samples, 100 * float(np.mean(held)) if held else math.nan


def score_table(samples: int, jobs: int) -> list[str]:
    """Coverage of rows' intervals."""
    asked = [(kind, shift, units, samples) for _, kind, shift in SCORED for units in UNITS]
    found = iter(of_each(score_coverage, asked, jobs))
    lines = []
    for name, _, _ in SCORED:
        of_name = [next(found) for _ in UNITS]
        lines.append([name, *(f"{held:.0f}" + ("" if given == 100 else f" of {given:.0f}") for given, held in of_name)])
    text = (
        "A score's interval: percent of samples in which it holds the score of all images (of percent that have one)."
    )
    return [text, "", *markdown_table(("score", *(f"{units} units" for units in UNITS)), lines)]


def miou_tables(samples: int, jobs: int) -> list[str]:
    """The table of :mod:`benchmarks.miou_intervals`."""
    kinds = list(product((False, True), CLASSES))
    lines = of_each(miou_lines, [(classes, poor, samples) for poor, classes in kinds], jobs)
    return miou_table([line for of_kind in lines for line in of_kind])


def write_tables(path: Path, lines: Sequence[str], about: str) -> None:
    """Write the tables between the marks in a page."""
    before, _, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    write_text(path, f"{before}{BEGIN}\n{about}\n\n" + "\n".join(lines).rstrip() + f"\n{END}{after}")


def main() -> int:
    """Measure the rates and write them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decisions")
    parser.add_argument(
        "--pages", type=int, default=300, help="made-up studies of a size and number of seeds (default: 300)"
    )
    parser.add_argument("--samples", type=int, default=400, help="samples of images for the mIoU (default: 400)")
    parser.add_argument("--table", type=Path, help="the page whose tables are written")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default: 1); they change no number")
    args = parser.parse_args()
    lines = rates_tables(args.pages, args.samples, args.jobs)
    machine = describe()
    about = (
        f"`python -m benchmarks.decisions --pages {args.pages} --samples {args.samples}`, {machine['cores']} cores, "
        f"Python {platform.python_version()}, {datetime.now(UTC).date()}."
    )
    if args.table is not None:
        write_tables(args.table, lines, about)
    print("\n".join([about, "", *lines]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
