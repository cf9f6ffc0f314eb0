"""Result rows on the command line: what a command prints last, and the files at the top of its folder."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dinoskip.cli.arguments import print_json, print_table
from dinoskip.decisions.failures import failed_cuts
from dinoskip.io.files import read_json, read_regular, write_text
from dinoskip.io.output import given_file
from dinoskip.pipeline.report.notices import note_unfinished
from dinoskip.pipeline.report.results_folder import publish_results
from dinoskip.pipeline.report.settings import ReportSettings
from dinoskip.pipeline.report.sources import sources_of
from dinoskip.results.records import read_records
from dinoskip.results.rows import UNKNOWN_EPOCH, EvalResult, rows_csv, rows_in
from dinoskip.runtime.console import say
from visualize.report.diagnostics import outliers_said
from visualize.report.names import words_of_report
from visualize.rows import REMEDY, last_epochs

if TYPE_CHECKING:
    from dinoskip.pipeline.runner import Runner
    from visualize.rows import Benchmark, Rows

_FIRST_COLUMNS = 8  # metric to model
MOST_BY_BLOCK = 5  # models beside each other in a table of blocks


def rows_of(runner: Runner) -> list[EvalResult]:
    """The rows of every stage that has run, baselines once, below the models'."""
    published = runner.published()
    missing = [node.id for node in runner.planner.nodes if node.id not in published]
    sources = sources_of(runner.planner.nodes, published)
    stage_of: dict[EvalResult, str] = {}  # the first one, as every variant's stage has the rows of baselines
    for stage, out in published.items():
        for row in note_unfinished(rows_in(out), stage, missing):
            stage_of.setdefault(row, stage)
    return sorted((sources.of_row(row, stage) for row, stage in stage_of.items()), key=lambda row: row.is_baseline)


def best_rows(rows: list[EvalResult]) -> list[EvalResult]:
    """The best single block and the multiscale row of every model, data set and metric."""
    groups: dict[tuple[Any, ...], EvalResult] = {}
    for row in rows:
        measure = (row.task, row.dataset, row.metric, row.is_baseline, row.model, row.epoch)
        key = (*measure, "+" in row.block, row.norm, row.note, row.facet, row.protocol)
        if key not in groups or row.ranking_value > groups[key].ranking_value:
            groups[key] = row
    return [groups[key] for key in sorted(groups)]


def print_rows(rows: list[EvalResult]) -> None:
    """Print rows as a table on stdout."""
    rows = [row for row in rows if not row.is_of_a_seed]  # their means are shown
    models = [row for row in rows if not row.is_baseline]
    more = [name for name in ("facet", "protocol") if len({getattr(row, name) for row in models}) > 1]
    shown = ("task", "dataset", "metric", "model", "epoch", "block", "norm", *more, "shown", "interval", "note")
    heads = {"dataset": "data", "shown": "value", "interval": "95 %"}
    values = [[getattr(row, name) for name in shown] for row in rows]
    for line in values:
        line[shown.index("epoch")] = "" if line[shown.index("epoch")] == UNKNOWN_EPOCH else line[shown.index("epoch")]
    print_table(values, [heads.get(name, name) for name in shown])


def print_names(runner: Runner, models: Collection[str]) -> dict[str, str]:
    """Print, once, the words that pages have for each network, and what was given for it on the command line or YAML.

    Files, rows and tables of blocks have its short name. Returns the words by short name.
    """
    reports = [node.settings for node in runner.planner.nodes if isinstance(node.settings, ReportSettings)]
    lines: dict[str, tuple[str, str, str]] = {}
    words_of: dict[str, str] = {}
    for report in reports:
        for variant in report.variants:
            name = variant.family or variant.name
            words_of[variant.name] = report.words_of(variant.name)
            if not models or {name, variant.name} & set(models):  # photographs without labels have no rows
                lines.setdefault(name, (name, report.words_of(name), variant.backbone or "trained here"))
    if any(name != words for name, words, _ in lines.values()):
        print_table(list(lines.values()), ("network", "on pages", "read from"))
        say()
    return words_of


def print_results(runner: Runner, rows: Sequence[EvalResult], words: Mapping[str, str]) -> None:
    """Print the last epoch's numbers: every block of a few models, then each, in ``words``, at its chosen block."""
    from visualize.comparison import Scores  # numpy, scipy

    by_model: dict[str, list[EvalResult]] = {}
    for row in rows:
        if not row.is_baseline:
            by_model.setdefault(row.model, []).append(row)
    if len(by_model) <= MOST_BY_BLOCK:
        for benchmark, models in last_epochs(by_model).items():
            blocks = dict.fromkeys(block for by_block in models.values() for block in by_block)
            lines = [[block, *(_shown(by_block.get(block)) for by_block in models.values())] for block in blocks]
            say(f"{benchmark.label}, by block{_read_at(benchmark, next(iter(models.values())))}")
            print_table(lines, ("block", *models))
            say()
    records = {row: kept for out in runner.published().values() for row, kept in read_records(out).items()}
    scores = Scores(by_model, records)
    chosen: list[tuple[str, ...]] = []
    failed = any(failed_cuts(row) for row in rows)
    for benchmark in scores.benchmarks:
        for name in by_model:
            score = scores.chosen_last(name, benchmark)
            if score is not None:
                block = "/".join(dict.fromkeys(score.blocks))
                deviation = score.row.deviation if score.value == score.row.value else None
                shown = replace(score.row, value=score.value, low=score.low, high=score.high, deviation=deviation)
                known = score.failed or shown.interval
                chosen.append(
                    (benchmark.label, words.get(name, name), block, shown.facet, shown.shown, known, score.how)
                )
        trivial = benchmark.baseline(rows)
        if trivial is not None:
            number = trivial.shown, trivial.interval
            chosen.append((benchmark.label, trivial.model, "", "", *number, "no network"))
    if chosen:
        print_table(chosen, ("metric", "model", "block", "output", "value", "95 %", "block is"))
    if failed:
        say(f"Where cuts fail, the number says nothing of the network: {REMEDY}.")


def _read_at(benchmark: Benchmark, rows: Rows) -> str:
    """Return ``, read at FACET``; empty where the measure's name says it, and for classifiers, which read no block."""
    facet = next(iter(rows.values())).facet
    return f", read at {facet}" if facet and "read at" not in benchmark.setting else ""


def _shown(row: EvalResult | None) -> str:
    if row is None:
        return ""
    about = failed_cuts(row).partition(" (")[0] or row.interval
    return f"{row.shown} ({about})" if about else row.shown


def publish(runner: Runner, rows: Sequence[EvalResult], pages: Sequence[str] = ("report",)) -> list[Path]:
    """Bring rows and pages to the top of the study's folder; return the page and the table of rows."""
    return publish_results(runner.results, rows, {name: runner.output(name) for name in pages})


def rows_file(given: str) -> Path:
    """The file of ``--csv``; :class:`ConfigError` for one that is there and does not begin as a table of rows does.

    Later versions have more columns, the first ones are the same.
    """
    head = ",".join(rows_csv([]).splitlines()[0].split(",")[:_FIRST_COLUMNS]).encode()
    return given_file(given, lambda path: read_regular(path, len(head), whole=False) == head)


def conclude(runner: Runner, pages: Sequence[str], *, as_json: bool = False, csv: str | None = None) -> None:
    """Bring rows and pages to the top of the study's folder, print the numbers, then where all is."""
    rows = rows_of(runner)
    written = publish(runner, rows, pages)
    if csv:
        write_text(rows_file(csv), rows_csv(rows))
    if as_json:
        print_json([row.plain() for row in rows])
        return
    words = print_names(runner, {row.model for row in rows if not row.is_baseline})
    print_results(runner, rows, words)
    if (gallery := runner.output("gallery")) is not None and (gallery / "outliers.json").is_file():
        report = runner.output("report")
        of_files = {} if report is None else words_of_report(report)
        counted = read_json(gallery / "outliers.json")
        for line in outliers_said({of_files.get(name, name): blocks for name, blocks in counted.items()}):
            say(line)
    for path in written:
        say(f"{'page' if path.suffix == '.html' else 'rows'}: {path.resolve()}")
