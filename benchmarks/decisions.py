"""How often a report is wrong, and how often it finds a difference: made-up studies through the code that writes pages.

    python -m benchmarks.decisions --table docs/report.md       # about 10 minutes on one core
    python -m benchmarks.decisions --pages 40 --samples 40      # quicker and coarser

A made-up study has five networks on some measures, of n units and some seeds of training. Rows and records go through
:func:`visualize.report.answer.answers`, which the report prints, or :func:`visualize.paper.claims.claims`. **Equal**
networks have the same expected score: a page that calls any of them better or worse is a false positive. **Different**:
one network is better by a number of standard errors. Intervals are held against what they are of: a difference's
expected value, and for the mIoU (:mod:`benchmarks.miou_intervals`) that of a population of images.
"""

from __future__ import annotations

import argparse
import math
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from benchmarks.miou_intervals import miou_tables
from benchmarks.pages import markdown_table
from dinoskip.environment import describe
from dinoskip.files import write_text
from dinoskip.records import ImageRecords
from dinoskip.results import EvalResult
from dinoskip.statistics import Records, interval, score
from visualize.comparison import Scores
from visualize.paper.claims import Comparison, claims
from visualize.paper.compare import ComparedStudy
from visualize.paper.published import INITIALISED, SKIP
from visualize.report.answer import AnswerLine, answers
from visualize.rows import StudyVariant

F64 = NDArray[np.float64]
UNITS = (6, 12, 60, 216, 1449)
SEEDS = (1, 2, 3, 5, 10)
BEGIN, END = "<!-- rates: begin -->", "<!-- rates: end -->"


@dataclass(frozen=True)
class Made:
    """A made-up study: ``lines`` comparisons of hits and of scores in turn, each network with some seeds.

    ``spread`` is the standard deviation over seeds in standard errors over units, ``ratio`` how much larger that of
    the networks without skips is, ``gap`` how much these are better, in standard errors of the difference; ``common``
    is the share of a network's variance over units that its seeds have in common; ``blocks`` equally good ones, of
    which one is chosen; ``gained`` is what training adds to all, None if the start is not known; without ``recorded``
    there are intervals and no records.
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


def made_records(design: Made, kind: str, shift: float, shared: F64, network: F64, rng: np.random.Generator) -> Records:
    """Records of a network: half of what a unit scores all networks share, ``network`` its seeds."""
    every = math.sqrt(design.common) * network + math.sqrt(1 - design.common) * rng.standard_normal(design.units)
    merit = (shared + every) / math.sqrt(2) + shift * math.sqrt(2 / design.units)
    return (merit > 0).astype(np.uint8) if kind == "CorLoc" else expit(merit)


def study(design: Made, rng: np.random.Generator) -> tuple[list[StudyVariant], Scores]:
    """Rows and records of a study: a network with skips and others without, on as many measures as there are lines."""
    networks = 5 if design.lines % 4 == 0 else 2
    measures = design.lines // (networks - 1)
    ids = tuple(f"{unit:06}" for unit in range(design.units))
    rows: dict[str, list[EvalResult]] = {}
    records: dict[EvalResult, ImageRecords] = {}
    variants = []
    for measure in range(measures):
        kind, task = (("CorLoc", "tokencut"), ("PCK@0.1 per image", "correspond"))[measure % 2]
        shared = rng.standard_normal(design.units)
        for network in range(networks):
            runs = rng.standard_normal((design.blocks, design.units))
            for seed in range(design.seeds):
                deviation = design.spread * (design.ratio if network else 1.0) if design.seeds > 1 else 0.0
                luck = deviation * rng.standard_normal() + (design.gap if network else 0.0)
                for epoch in (0, 1) if design.gained is not None else (1,):
                    shift = luck - (0.0 if epoch else design.gained or 0.0)
                    for block in range(1, design.blocks + 1):
                        name = f"{network}-s{seed}"
                        values = made_records(design, kind, shift, shared, runs[block - 1], rng)
                        low, high = (100 * end for end in interval(values))
                        row = EvalResult(
                            kind, 100 * score(values), task, str(block), f"set{measure}", "val", design.units,
                            model=name, epoch=epoch, low=low, high=high,
                        )  # fmt: skip
                        rows.setdefault(name, []).append(row)
                        if design.recorded:
                            records[row] = ImageRecords(ids, values)
    for name, runs in rows.items():
        family = name.partition("-")[0]
        role = SKIP if family == "0" else INITIALISED
        variants.append(StudyVariant(name, role, "soap", 12, runs, family=family, seed=int(name.partition("-s")[2])))
    return variants, Scores(rows, records)


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
    """Shares, in percent, of pages with a verdict, of lines with a verdict, and of intervals that hold the truth."""

    pages: float
    lines: float
    coverage: float


def rates(design: Made, pages: int, seed: int = 0) -> Rates:
    """Write ``pages`` studies; coverage is that of no difference, nan where networks differ."""
    rng = np.random.default_rng([seed, design.units, design.seeds, design.blocks])
    lines = [page(design, rng) for _ in range(pages)]
    every = [line for page_lines in lines for line in page_lines]
    inside = [
        line.difference.low <= 0 <= line.difference.high
        for line in every
        if line.difference is not None and not math.isnan(line.difference.low)
    ]
    return Rates(
        100 * float(np.mean([any(line.sign for line in page_lines) for page_lines in lines])),
        100 * float(np.mean([line.sign != 0 for line in every])),
        100 * float(np.mean(inside)) if inside and not design.gap else math.nan,
    )


CASES: Sequence[tuple[str, Made]] = (
    ("24 lines, 60 units, one seed", Made(60)),
    ("24 lines, 60 units, 2 seeds", Made(60, 2)),
    ("24 lines, 60 units, 3 seeds", Made(60, 3)),
    ("24 lines, 6 units, 10 seeds that hardly differ", Made(6, 10, 0.1, common=0.9)),
    ("spreads over seeds 1 : 50, 2 seeds", Made(60, 2, 0.05, ratio=50.0)),
    ("spreads over seeds 1 : 50, 3 seeds", Made(60, 3, 0.05, ratio=50.0)),
    ("best of 4 equal blocks, 60 units", Made(60, blocks=4, lines=8)),
    ("best of 4 equal blocks, 60 units, 3 seeds", Made(60, 3, blocks=4, lines=8)),
    ("1 unit, one seed", Made(1, lines=8)),
    ("3 units, one seed", Made(3, lines=8)),
    ("intervals without records, 60 units, one seed", Made(60, lines=8, recorded=False)),
    ("without records, 60 units, 3 seeds", Made(60, 3, lines=8, recorded=False)),
    ("a gap that was there before training, nothing gained", Made(216, 3, 0.1, gap=9.0, gained=0.0, lines=8)),
)
_LINES = 8


def rates_tables(pages: int, samples: int, say: Callable[[str], None]) -> list[str]:
    """The tables of docs/report.md; ``pages`` studies and ``samples`` of images each."""
    head = ("units", *(f"{seeds} seed{'s' if seeds > 1 else ''}" for seeds in SEEDS))
    equal, different, every = [], [], []
    for units in UNITS:
        cells: tuple[list[str], list[str]] = ([], [])
        for seeds in SEEDS:
            count = max(pages // 6, pages * 216 * 3 // (max(216, units) * seeds))
            none = rates(Made(units, seeds, lines=_LINES), count)
            different_networks = rates(Made(units, seeds, 0.3, gap=5.0, lines=_LINES), max(10, count // 8))
            error = math.sqrt(none.pages * (100 - none.pages) / count)
            cells[0].append(f"{none.pages:.1f} ± {error:.1f}, {none.coverage:.0f}")
            cells[1].append(f"{different_networks.lines:.0f}")
            every.append((none.pages, count))
            say(f"{units} units, {seeds} seeds: {none} of {count} pages; different {different_networks}")
        equal.append([str(units), *cells[0]])
        different.append([str(units), *cells[1]])
    total = sum(count for _, count in every)
    whole = sum(share * count for share, count in every) / total
    special = []
    for name, design in CASES:
        special.append([name, f"{rates(design, pages // 3).pages:.1f}"])
        say(": ".join(special[-1]))
    rng = np.random.default_rng(0)
    for seeds in (1, 3):
        judged = [claimed(Made(60, seeds, lines=_LINES), rng) for _ in range(pages // 3)]
        wrong = 100 * float(np.mean([any(comparison.sign for comparison in comparisons) for comparisons in judged]))
        special.append([f"the paper's claims, 60 units, {seeds} seed{'s' if seeds > 1 else ''}", f"{wrong:.1f}"])
        say(": ".join(special[-1]))
    return [
        f"Equal networks: percent of pages of {_LINES} lines with a verdict, ± its standard error (over all {total} "
        f"pages {whole:.1f}), and percent of the differences' intervals that hold 0.",
        "", *markdown_table(head, equal),
        "One network better by 5 standard errors of a difference over units, seeds varying by a third of one: percent "
        "of lines with a verdict.",
        "", *markdown_table(head, different),
        "Percent of pages of equal networks with a verdict:", "", *markdown_table(("study", "pages"), special),
        *miou_tables(samples, say),
    ]  # fmt: skip


def write_tables(path: Path, lines: Sequence[str], about: str) -> None:
    """Write the tables between the marks in a page."""
    before, _, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    write_text(path, f"{before}{BEGIN}\n{about}\n\n" + "\n".join(lines).rstrip() + f"\n{END}{after}")


def main() -> int:
    """Measure the rates and write them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decisions")
    parser.add_argument(
        "--pages", type=int, default=900, help="made-up studies of 216 units with three seeds (default: 900)"
    )
    parser.add_argument("--samples", type=int, default=400, help="samples of images for the mIoU (default: 400)")
    parser.add_argument("--table", type=Path, help="the page whose tables are written")
    args = parser.parse_args()
    lines = rates_tables(args.pages, args.samples, lambda text: print(text, file=sys.stderr, flush=True))
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
