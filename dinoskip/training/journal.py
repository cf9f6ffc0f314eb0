"""What a run writes about its steps: metrics.jsonl, nonfinite.jsonl, the collapse alarm, the status line."""

from __future__ import annotations

import time
from contextlib import closing

from dinoskip.console import MetricsLog, log, read_metrics
from dinoskip.errors import NonFiniteError
from dinoskip.training.dino import Rates
from dinoskip.training.guard import CollapseAlarm
from dinoskip.training.rundir import RunDirectory


class Journal:
    """The record of a run from ``step`` on; rows after it (of a run killed since its last checkpoint) are superseded.

    On ranks other than 0 it keeps count and writes nothing.
    """

    def __init__(self, run: RunDirectory, step: int, out_dim: int, max_nonfinite: int) -> None:
        self._run, self._max_nonfinite = run, max_nonfinite
        self._faults = run.path / "nonfinite.jsonl"
        self._metrics = MetricsLog(run.path / "metrics.jsonl", resume_step=step) if run.is_main else None
        if run.is_main and self._faults.exists():
            MetricsLog(self._faults, resume_step=step).close()
        self._alarm, self._alarmed = CollapseAlarm(out_dim), False
        for row in read_metrics(run.path / "metrics.jsonl") if run.is_main else []:
            self._alarmed |= self._alarm.update(row["loss"], row["teacher_entropy"]) is not None
        self._in_row = 0
        self._restart_clock()

    def _restart_clock(self) -> None:
        self._began, self._images, self._waited = time.perf_counter(), 0, 0.0

    def count(self, images: int, waited: float) -> None:
        """Note a step's images and the seconds it waited for them."""
        self._images, self._waited = self._images + images, self._waited + waited

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
                f"their images are in {self._faults}; try a lower optimizer.lr or pretrain.precision=fp32",
            )

    def row(
        self, step: int, epoch: int, loss: float, entropy: float, grad_norm: float, rates: Rates, bad_images: int
    ) -> None:
        """Write a row: the step's own values, and images a second and the share of waiting since the last row."""
        wrong = self._alarm.update(loss, entropy)
        if wrong and not self._alarmed and self._run.is_main:
            log.warning("step %d: collapse: %s", step, wrong)
        self._alarmed |= wrong is not None
        seconds = max(time.perf_counter() - self._began, 1e-9)
        if self._metrics is not None:
            self._metrics.write(
                step=step, epoch=epoch, loss=loss, teacher_entropy=entropy, collapse=wrong is not None,
                grad_norm=grad_norm, lr=rates.lr, wd=rates.weight_decay, momentum=rates.momentum,
                teacher_temp=rates.teacher_temp, images_per_s=self._images / seconds, data_wait=self._waited / seconds,
            )  # fmt: skip
        self._run.report(step=step, epoch=epoch, loss=loss, collapse=wrong, bad_images=bad_images)
        self._restart_clock()

    def close(self) -> None:
        """Close the files."""
        if self._metrics is not None:
            self._metrics.close()
