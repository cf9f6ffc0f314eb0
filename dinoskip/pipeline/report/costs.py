"""Cost of a study, read from the files of its finished stages and never from a clock: same stages, same tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import median
from typing import Any

from dinoskip.io.files import read_json
from dinoskip.pipeline import stages
from dinoskip.pipeline.estimate.costs import image_flops
from dinoskip.pipeline.progress import past_seconds
from dinoskip.pipeline.report.settings import ReportSettings
from dinoskip.pipeline.stage import Task
from dinoskip.pipeline.stages.supervise import SuperviseSection
from dinoskip.results.rows import read_rows
from dinoskip.runtime.console import read_metrics
from visualize.tables import DataTable

_TRAINING_COLUMNS = [
    "variant", "steps", "images a second", "minutes", "GFLOP an image", "GFLOP/s", "matmul GFLOP/s", "% of it",
]  # fmt: skip
_TRAINING_NOTE = (
    "Images a second: the median over the training log. Minutes: all its steps, with waiting for images and saving; "
    "without evaluations while training and steps that an interruption lost. GFLOP: matrix products of forward and "
    "backward passes. The matmul rate is that of large products on the run's devices in its precision, measured when "
    "its last session began."
)
_STAGES_NOTE = (
    "Sums over all stages of a kind, whether one after the other or side by side; of a stage that was interrupted, its "
    "last session alone."
)


@dataclass(frozen=True)
class Throughput:
    """A training run's steps, images a second (median over rows) and seconds of all steps."""

    steps: int
    images_per_s: float
    seconds: float


@dataclass(frozen=True)
class RunMachine:
    """Machine of a training run, as far as ``env.json`` of the run states it."""

    torch: str = "unknown"
    cores: str = "unknown"
    processor: str = "an unnamed processor"
    GPUs: str = "unknown"
    world_size: int = 1
    matmul_gflops: float | None = None

    @classmethod
    def read(cls, run: Path) -> RunMachine:
        """The machine of the run in a folder; :class:`DataError` without the file."""
        stored = read_json(run / "env.json")
        return cls(**{field.name: stored[field.name] for field in fields(cls) if field.name in stored})


def throughput(rows: Sequence[Mapping[str, Any]], batch_size: int) -> Throughput | None:
    """Return the throughput by rows of metrics.jsonl; None if none has a rate.

    A row's rate is that since the row before or, if later, since its session began; it stands for all steps since the
    row before. Rows of an evaluation alone have none, and the next row's reaches back beyond them.
    """
    timed = [row for row in rows if row.get("images_per_s", 0) > 0]
    if not timed:
        return None
    seconds, before = 0.0, 0
    for row in timed:
        seconds += (row["step"] - before) * batch_size / row["images_per_s"]
        before = row["step"]
    return Throughput(before, median(row["images_per_s"] for row in timed), seconds)


def cost_tables(task: Task) -> list[Any]:
    """Tables of the report: what every variant's training cost, and the minutes of every kind of stage."""
    trained, stages = _trained(task), _stages(task)
    tables = [DataTable("What it cost: training", _TRAINING_COLUMNS, trained, _TRAINING_NOTE)] if trained else []
    columns = ["kind of stage", "stages", "minutes"]
    return [*tables, DataTable("What it cost: minutes of all stages", columns, stages, _STAGES_NOTE)]


def _trained(task: Task) -> list[list[object]]:
    lines: list[list[object]] = []
    settings: ReportSettings = task.settings
    recipe = settings.recipe
    if recipe is None:
        return []
    for variant in settings.trained:
        assert variant.model is not None
        if (run := task.inputs.get(f"{recipe.section}/{variant.name}")) is not None:
            classes = read_rows(run / "rows.json")[0].classes if isinstance(recipe, SuperviseSection) else 0
            operations = image_flops(variant.model, recipe, classes)
            lines += _line(variant.name, run, recipe.batch_size, operations / 1e9)
    return lines


def _line(name: str, run: Path, batch_size: int, gflop: float) -> list[list[object]]:
    speed = throughput(read_metrics(run / "metrics.jsonl"), batch_size)
    if speed is None:
        return []
    reached = speed.images_per_s * gflop
    machine = RunMachine.read(run) if (run / "env.json").is_file() else RunMachine()
    limit = None if machine.matmul_gflops is None else machine.matmul_gflops * machine.world_size
    share: list[object] = ["not measured", "not measured"] if limit is None else [limit, 100 * reached / limit]
    return [[name, speed.steps, speed.images_per_s, speed.seconds / 60, gflop, reached, *share]]


def _stages(task: Task) -> list[list[object]]:
    """Kind of stage, how many there are, and their minutes, in order of execution; all together below."""
    seconds: dict[str, list[float]] = {kind: [] for kind in stages.names()}
    for role, spent in past_seconds(task.inputs).items():
        seconds[role.partition("/")[0]].append(spent)
    every = [spent for of_kind in seconds.values() for spent in of_kind]
    lines: list[list[object]] = [[kind, len(taken), sum(taken) / 60] for kind, taken in seconds.items() if taken]
    return [*lines, ["all", len(every), sum(every) / 60]]
