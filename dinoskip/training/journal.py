"""Records of a run's steps: metrics.jsonl, nonfinite.jsonl, the alarm, the status line."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

from dinoskip.errors import NonFiniteError
from dinoskip.runtime.console import MetricsLog, log, read_metrics
from dinoskip.runtime.distributed import on_main
from dinoskip.training.boards import Boards
from dinoskip.training.guard import CollapseAlarm
from dinoskip.training.run_directory import RunDirectory

TELL_SECONDS = 60.0  # between lines on speed and waiting


def best_step(run_dir: Path, score: str) -> int:
    """The first of the steps whose row in metrics.jsonl has the highest ``score``; 0 if no row has it."""
    rows = read_metrics(run_dir / "metrics.jsonl")
    values = {row["step"]: row[score] for row in rows if score in row}
    return max(values, key=lambda step: (values[step], -step), default=0)


def _faults_up_to(path: Path, step: int) -> int:
    """Return the number of non-finite steps in a row that end at ``step``; a restart does not reset the count."""
    steps = {row["step"] for row in read_metrics(path)}
    return next(count for count in range(step + 1) if step - count not in steps)


class Journal:
    """The record of a run from ``step`` on; rows after it (of a run killed since its last checkpoint) are superseded.

    On ranks other than 0 it keeps count and writes nothing. ``score`` names a value that evaluations while training
    add to rows.
    """

    def __init__(
        self,
        run: RunDirectory,
        step: int,
        alarm: CollapseAlarm | None,
        max_nonfinite: int,
        score: str | None = None,
        boards: Boards | None = None,
    ) -> None:
        self._boards = boards
        self._run, self._max_nonfinite = run, max_nonfinite
        self._faults = run.path / "nonfinite.jsonl"
        self._metrics = MetricsLog(run.path / "metrics.jsonl", resume_step=step) if run.is_main else None
        self._inside = run.path / "diagnostics.jsonl"
        for path in (self._faults, self._inside):
            if run.is_main and path.exists():
                MetricsLog(path, resume_step=step).close()
        self._alarm, self._alarmed = alarm, False
        self._score = score
        for row in read_metrics(run.path / "metrics.jsonl") if run.is_main else []:
            self._alarmed |= alarm is not None and "loss" in row and alarm.update(row) is not None
        self._in_row = on_main(lambda: _faults_up_to(self._faults, step))
        self._restart_clock()
        self._told, self._told_waited, self._told_images = time.perf_counter(), 0.0, 0

    def _restart_clock(self) -> None:
        self._began, self._images, self._waited = time.perf_counter(), 0, 0.0

    def count(self, images: int, waited: float) -> None:
        """Note a step's images and the seconds it waited for them."""
        self._images, self._waited = self._images + images, self._waited + waited
        self._told_images, self._told_waited = self._told_images + images, self._told_waited + waited

    def log_epoch(self, epoch: int, epochs: int, verdict: Callable[[float], str]) -> None:
        """Say after an epoch how fast it goes and what it waits for, at most once a minute, and after the last."""
        seconds = time.perf_counter() - self._told
        if self._run.is_main and self._told_images and (seconds > TELL_SECONDS or epoch == epochs):
            speed = self._told_images / seconds
            log.info("epoch %d/%d: %.1f images/s, %s", epoch, epochs, speed, verdict(self._told_waited / seconds))
            self._told, self._told_waited, self._told_images = time.perf_counter(), 0.0, 0

    def leave_out(self, seconds: float) -> None:
        """Do not count the last ``seconds``, spent on something else than training, in images a second."""
        self._began += seconds
        self._told += seconds

    def finite(self) -> None:
        """Note that a step was finite."""
        self._in_row = 0

    def nonfinite(self, step: int, loss: float, ids: list[str]) -> None:
        """Keep the images of a step that was not, for replay; NonFiniteError after too many such steps in a row."""
        self._in_row += 1
        if self._run.is_main:
            with closing(MetricsLog(self._faults)) as rows:
                rows.write(step=step, loss=repr(loss), ids=ids)
            log.warning("step %d: gradients are not finite, nothing was updated (%d in a row)", step, self._in_row)
        if self._in_row >= self._max_nonfinite:
            raise NonFiniteError(
                f"{self._run.path}: {self._in_row} non-finite steps in a row, the last is step {step}",
                f"their images are in {self._faults}; try a lower optimizer.lr or precision: fp32",
            )

    @property
    def best(self) -> int:
        """The step whose row has the highest score, see :func:`best_step`; 0 on other ranks than 0."""
        return best_step(self._run.path, self._score) if self._score and self._run.is_main else 0

    def row(self, step: int, epoch: int, values: Mapping[str, float], bad_images: int) -> None:
        """Write a row: the step's own values, and images a second and the share of waiting since the last row."""
        wrong = self._alarm.update(values) if self._alarm else None
        if wrong and not self._alarmed and self._run.is_main:
            log.warning("step %d: collapse: %s", step, wrong)
        self._alarmed |= wrong is not None
        seconds = max(time.perf_counter() - self._began, 1e-9)
        if self._metrics is not None:
            row = {
                "epoch": epoch, **values, "collapse": wrong is not None,
                "images_per_s": self._images / seconds, "data_wait": self._waited / seconds,
            }  # fmt: skip
            self._metrics.write(step=step, **row)
            if self._boards is not None:
                self._boards.write(step, row)
        self._run.report(step=step, epoch=epoch, loss=values["loss"], collapse=wrong, bad_images=bad_images)
        self._restart_clock()

    def measured(self, step: int, epoch: int, values: Mapping[str, float]) -> None:
        """Write a row of an evaluation's ``values`` alone, after a step that was not finite and has none of its own."""
        if self._metrics is not None and values:
            self._metrics.write(step=step, epoch=epoch, **values)
            if self._boards is not None:
                self._boards.write(step, {"epoch": epoch, **values})

    def diagnostics(self, step: int, epoch: int, values: Mapping[str, list[float]]) -> None:
        """Write a row of diagnostics.jsonl: lists over blocks."""
        if self._metrics is not None:
            with closing(MetricsLog(self._inside)) as rows:
                rows.write(step=step, epoch=epoch, **values)

    def close(self) -> None:
        """Close the files and the boards."""
        if self._boards is not None:
            self._boards.close()
        if self._metrics is not None:
            self._metrics.close()
