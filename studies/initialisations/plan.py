# Frozen: rows docs/results/initialisations.md, commit 41fd7fa3, 2026-11-25.
"""Runs of the study in their order, the most telling first; finished runs are read from their files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dinoskip.io.files import read_json
from dinoskip.optim import AdamWConfig, OptimizerConfig, SoapConfig
from studies.initialisations.candidates import CANDIDATES

RATES: Mapping[str, tuple[float, ...]] = {"adamw": (1e-3, 3e-4, 3e-3), "soap": (1e-3, 3e-3, 3e-4)}
"""Learning rates, the first of which is tried first."""
SEEDS = (0, 1, 2)
MACHINE = "machine.json"
"""Beside the runs: where they were made, last."""
MAIN = (
    "skip", "default", "paper", "calibrated", "paper, scaled", "calibrated, scaled", "half mirrored, scaled",
    "paper, half mirrored, scaled", "calibrated, mixing", "calibrated, mixing, scaled",
)  # fmt: skip
"""Candidates that are run first, and those of 24 blocks."""


@dataclass(frozen=True)
class Run:
    """One run; ``lr`` is the peak of the schedule, whatever the batch."""

    name: str
    optimizer: str
    lr: float
    seed: int
    depth: int = 12

    @property
    def file(self) -> str:
        """The name of its file."""
        return f"{_plain(self.name)}-d{self.depth}-{self.optimizer}-lr{self.lr:g}-s{self.seed}.json"

    @property
    def fresh_file(self) -> str:
        """The name of the file of its network before training, which runs of other rates share."""
        return f"fresh-{_plain(self.name)}-d{self.depth}-s{self.seed}.json"

    @property
    def config(self) -> OptimizerConfig:
        """The settings of the optimizer of a run."""
        return AdamWConfig(lr=self.lr) if self.optimizer == "adamw" else SoapConfig(lr=self.lr)


def _plain(name: str) -> str:
    kept = name.replace("λ", "lambda").replace(".", "")
    return "_".join("".join(character if character.isalnum() else " " for character in kept).split())


def best_rate(out: Path, name: str, kind: str, depth: int = 12) -> float:
    """The rate of the highest validation accuracy at seed 0, of those that were run; the first rate if none was."""
    tried = [run for rate in RATES[kind] if (out / (run := Run(name, kind, rate, 0, depth)).file).is_file()]
    if not tried:
        return RATES[kind][0]
    return max(tried, key=lambda run: float(read_json(out / run.file).get("val_accuracy", -1.0))).lr


def all_runs(out: Path) -> Iterator[Run]:
    """Every run in order of execution; best rates are those of the runs in ``out``.

    The main candidates at all rates with seed 0, then at their best rate with the other seeds and with 24 blocks; the
    others likewise, without 24 blocks.
    """
    others = [name for name in CANDIDATES if name not in MAIN]
    for names in (MAIN, others):
        for index in range(3):
            yield from (Run(name, kind, RATES[kind][index], 0) for name in names for kind in RATES)
        for seed in SEEDS[1:]:
            yield from (Run(name, kind, best_rate(out, name, kind), seed) for name in names for kind in RATES)
        if names is MAIN:
            yield from (Run(name, kind, best_rate(out, name, kind), 0, 24) for name in names for kind in RATES)


def done(out: Path) -> dict[Run, dict[str, Any]]:
    """Return the results of the finished runs, by run."""
    every = [
        Run(name, kind, rate, seed, depth)
        for name in CANDIDATES for kind, rates in RATES.items() for rate in rates
        for seed in SEEDS for depth in (12, 24)
    ]  # fmt: skip
    return {run: read_json(out / run.file) for run in every if (out / run.file).is_file()}
