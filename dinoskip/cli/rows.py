"""Result rows on the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dinoskip.cli.arguments import print_table
from dinoskip.results import LOWER_IS_BETTER, UNKNOWN_EPOCH, EvalResult, read_rows

if TYPE_CHECKING:
    from dinoskip.pipeline.runner import Runner


def rows_of(runner: Runner) -> list[EvalResult]:
    """The rows of every stage that has run, baselines once, below the models'."""
    rows: list[EvalResult] = []
    for node in runner.planner.nodes:
        out = runner.output(node.id)
        if out is not None and (out / "rows.json").is_file():
            rows += read_rows(out / "rows.json")
    return sorted(dict.fromkeys(rows), key=lambda row: row.is_baseline)


def best_rows(rows: list[EvalResult]) -> list[EvalResult]:
    """The best single block and the multiscale row of every model, data set and metric."""
    groups: dict[tuple[Any, ...], EvalResult] = {}
    for row in rows:
        what = (row.task, row.dataset, row.metric, row.is_baseline, row.model, row.epoch)
        key = (*what, "+" in row.block, row.norm, row.note, row.facet, row.protocol)
        sign = -1 if row.metric in LOWER_IS_BETTER else 1
        if key not in groups or sign * row.value > sign * groups[key].value:
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
