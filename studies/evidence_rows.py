# Frozen: rows docs/results/evidence/rows.csv.gz, commit 928ad55c, 2026-11-26.
"""Contents of the third study's rows: networks, seeds, curves over blocks, and differences of seeds.

Rows are those of ``docs/results/evidence/rows.csv.gz``, one a block, seed and measure, as text.
"""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from scipy.stats import t as student

from dinoskip.results.statistics import SeedSummary, over_seeds

NETWORKS = {
    "skip": "with skips",
    "mixing": "skipless, calibrated, heads that mix",
    "annealed": "as mixing, with skips whose weight goes from 1 to 0 over 60 % of training",
    "paper": "skipless, the paper's initialisation, β extrapolated by us from width 384 to 128 (2.25)",
}
SKIPLESS = ("mixing", "annealed", "paper")
LABELS = {
    "paper": "paper init",  # in a text *paper* would be taken for the article
    "mixing_annealed": "annealed",  # the study from skips to none names it so; it is what the third calls annealed
    "paper_annealed": "paper init annealed",
    "mixing_distilled": "mixing distilled",
}
"""What texts call a network whose name in rows and configurations is another."""
SEEDS = tuple(range(5))
BLOCKS = range(5, 13)
"""Blocks whose mean the rule takes."""
LAST = 12
MOST_DIGITS = 3  # an interval that ends at 0 to three decimals of a point is that of equal differences
Rows = Sequence[Mapping[str, str]]
Curve = Mapping[int, float]
"""Values of single blocks, in percent, by block from 1."""
Curves = Mapping[str, Mapping[int, Curve]]
"""Curves by network and seed."""


@dataclass(frozen=True)
class Measure:
    """The measure of a curve: the task, metric, data set and read point of its rows."""

    name: str
    task: str
    metric: str
    dataset: str
    facet: str

    def is_of(self, row: Mapping[str, str]) -> bool:
        """Whether a row is of this measure, whatever its block and read point."""
        return (row["task"], row["metric"], row["dataset"]) == (self.task, self.metric, self.dataset)


def label(network: str) -> str:
    """Return what texts call a network of the rows."""
    return LABELS.get(network, network)


def name_of(model: str) -> tuple[str, int]:
    """Return network and seed of a run's name: ``("skip", 0)`` of ``skip-soap-s0``."""
    network, _, seed = model.split("-")
    return network, int(seed[1:])


def runs_of(rows: Rows) -> dict[str, list[int]]:
    """Return the seeds that each network has."""
    seeds_of: dict[str, set[int]] = {network: set() for network in NETWORKS}
    for model in {row["model"] for row in rows if not row["model"].startswith("baseline")}:
        network, seed = name_of(model)
        seeds_of[network].add(seed)
    return {network: sorted(seeds) for network, seeds in seeds_of.items()}


def curves(rows: Rows, measure: Measure, column: str = "value") -> dict[str, dict[int, dict[int, float]]]:
    """Return a measure's curves by network, seed and block; ``column`` names what is read (empty cells are 0)."""
    every: dict[str, dict[int, dict[int, float]]] = {network: {} for network in NETWORKS}
    for row in rows:
        of_measure = measure.is_of(row) and row["facet"] == measure.facet and row["block"].isdigit()
        if of_measure and not row["model"].startswith("baseline"):
            network, seed = name_of(row["model"])
            every[network].setdefault(seed, {})[int(row["block"])] = float(row[column] or 0)
    return every


def floor(rows: Rows, measure: Measure, name: str) -> float | None:
    """Return a baseline's mean value; None where it was not measured."""
    values = [float(row["value"]) for row in rows if row["model"] == f"baseline: {name}" and measure.is_of(row)]
    return statistics.mean(values) if values else None


def mean_of_late_blocks(curve: Curve) -> float:
    """Return the mean over :data:`BLOCKS`, as the study's rule has it."""
    return statistics.mean(curve[block] for block in BLOCKS)


def differences(every: Curves, network: str, against: str, rule: Callable[[Curve], float]) -> dict[int, float]:
    """Return by how much a network is above another, by seed, for the seeds that both have."""
    first, second = every[network], every[against]
    return {seed: rule(first[seed]) - rule(second[seed]) for seed in first if seed in second}


@dataclass(frozen=True)
class Paired:
    """Differences of two networks by seed, in points: mean, 95 % interval by Student's t, p (nan of one seed)."""

    by_seed: Mapping[int, float]

    @property
    def n(self) -> int:
        """Seeds that both have."""
        return len(self.by_seed)

    @cached_property
    def _summary(self) -> SeedSummary:
        return over_seeds(list(self.by_seed.values()))

    @property
    def mean(self) -> float:
        """Mean over seeds; nan without one."""
        return self._summary.mean if self.n else float("nan")

    @property
    def half(self) -> float:
        """Half of the 95 % interval of the mean, by Student's t of n - 1 degrees of freedom; nan below two seeds."""
        return self._summary.high - self._summary.mean if self.n else float("nan")

    @property
    def p(self) -> float:
        """Two-sided p of no difference, not corrected for the number of comparisons."""
        if self.n < 2:
            return float("nan")
        error = self._summary.deviation / self.n**0.5
        return float(2 * student.sf(abs(self.mean) / error, self.n - 1)) if error else float(self.mean == 0)

    @property
    def sign(self) -> int:
        """1 or -1 where the whole interval lies on one side of 0; 0 where it holds 0, and of one seed."""
        return (self.mean - self.half > 0) - (self.mean + self.half < 0) if self.n > 1 else 0

    @property
    def text(self) -> str:
        """``+52.1 ± 10.6``, with more decimals where one shows an interval that ends at 0; empty without a seed."""
        if self.n < 2:
            return f"{self.mean:+.1f}".replace("-", "−") if self.n else ""
        digits = 1
        while self.half and digits < MOST_DIGITS and f"{abs(self.mean):.{digits}f}" == f"{self.half:.{digits}f}":
            digits += 1
        return f"{self.mean:+.{digits}f} ± {self.half:.{digits}f}".replace("-", "−")


def identity(rows: Rows) -> str:
    """Return the sha256 of rows, whatever their order."""
    return hashlib.sha256("\n".join(sorted(json.dumps(dict(row), sort_keys=True) for row in rows)).encode()).hexdigest()
