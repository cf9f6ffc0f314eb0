"""Outputs of evaluations beside their rows, each network read at its chosen block: pictures, and the IoU of classes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dinoskip.pipeline.stage import Task
from dinoskip.results.records import ImageRecords
from dinoskip.results.rows import EvalResult, rows_in
from dinoskip.settings.tasks import EvaluationTask, tasks
from eval.metrics import ratios
from eval.probe import head_classes
from visualize.comparison import Scores
from visualize.report import Preview, Report
from visualize.rows import Benchmark, principal

HEADS = "heads.safetensors"


@dataclass(frozen=True)
class ChosenOutput:
    """The output of one evaluation of the network called ``name``, and the row of the block chosen for it."""

    name: str
    row: EvalResult
    folder: Path
    records: ImageRecords | None


def scores_of(report: Report) -> Scores:
    """The numbers of a report, by which blocks are chosen."""
    return Scores(principal(report.rows, every_read_point=True), report.records)


def chosen_blocks(scores: Scores, names: Sequence[str]) -> dict[Benchmark, dict[str, tuple[str, ...]]]:
    """Return the blocks of each network's score, the commonest first, by benchmark."""
    blocks: dict[Benchmark, dict[str, tuple[str, ...]]] = {}
    for benchmark in scores.benchmarks:
        for name in names:
            chosen = scores.chosen_last(name, benchmark)
            if chosen is not None:
                blocks.setdefault(benchmark, {})[name] = tuple(dict.fromkeys(chosen.blocks[:2]))
    return blocks


def chosen_outputs(task: Task, report: Report, scores: Scores, of: EvaluationTask) -> Iterator[ChosenOutput]:
    """Every network's last evaluation by a task on each data set, in the order of the page; of several fits the
    first. ``scores`` are :func:`scores_of` the report."""
    outputs: dict[tuple[Any, ...], tuple[EvalResult, Path]] = {}
    for role, path in sorted(task.inputs.items()):
        if role.partition("/")[0] == of.name:
            for row in rows_in(path):
                outputs.setdefault(_place(row), (row, path))
    for benchmark in (one for one in scores.benchmarks if one.task == of.name):
        for name in report.rows:
            chosen = scores.chosen_last(name, benchmark)
            read = None if chosen is None else outputs.get(_place((*chosen.read, chosen.row)[0]))
            if read is not None:
                yield ChosenOutput(name, *read, report.records.get(read[0]))


def _place(row: EvalResult) -> tuple[Any, ...]:
    """Return the fields that identify where a row is read, without its value.

    Rows of several fits together have no output of their own.
    """
    return (row.model, row.epoch, row.dataset, row.split, row.metric, row.block, row.facet, row.norm)


def block_pictures(task: Task, report: Report, scores: Scores) -> list[Preview]:
    """The picture of each network's chosen block, of every task that leaves one a block."""
    previews: list[Preview] = []
    for record in tasks():
        drawn = record.block_pictures
        if drawn is None:
            continue
        for output in chosen_outputs(task, report, scores, record):
            path = output.folder / drawn.folder / f"block{output.row.block}.jpg"
            if path.is_file():
                caption = f"{drawn.caption} {output.name}, block {output.row.block}, {output.row.dataset}."
                previews.append(Preview(path, caption, drawn.alt))
    return previews


def classes_of(
    task: Task, report: Report, scores: Scores, of: EvaluationTask
) -> Mapping[str, Mapping[str, Sequence[tuple[str, float]]]]:
    """``{data set: {network: [(class, IoU in percent), ...]}}`` at chosen blocks, in the order of the classes.

    Classes that neither are labelled nor predicted have no IoU and are left out.
    """
    sets: dict[str, dict[str, list[tuple[str, float]]]] = {}
    for output in chosen_outputs(task, report, scores, of):
        names = head_classes(output.folder / HEADS)
        if output.records is None or not isinstance(output.records.values, np.ndarray) or not names:
            continue
        intersection, union = output.records.values.sum(0, dtype=np.int64).T
        percent = 100 * ratios(intersection, union)
        sets.setdefault(output.row.dataset, {})[output.name] = [
            (name, float(value)) for name, value in zip(names, percent, strict=True) if np.isfinite(value)
        ]
    return sets
