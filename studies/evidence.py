# Frozen: rows docs/results/evidence/rows.csv.gz, commit 928ad55c, 2026-11-26.
"""The third study, run by run: whichever run is missing is made, its rows are added to docs/results/evidence.

python -m studies.evidence run --data IMAGENETTE [--networks skip mixing] [--seeds 0 1] [--output runs]
python -m studies.evidence page

A run is one network with one seed: its rates first (once a network), then training and evaluation by ``dinoskip run``,
which goes on where it was stopped. ``rows.csv.gz`` and ``rates.csv`` are what is kept; the page is made of them alone.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from benchmarks.pages import read_csv, write_csv
from dinoskip.io.files import read_json
from dinoskip.results.rows import EvalResult, read_rows
from dinoskip.runtime.console import log
from dinoskip.runtime.environment import describe
from studies.evidence_answer import Sources
from studies.evidence_page import write_pages
from studies.evidence_rows import NETWORKS, SEEDS
from studies.late_blocks_page import EPOCHS

RESULTS = Path("docs/results/evidence")
CONFIGS = Path("configs/results")
RATES = (2.7e-3, 8.0e-3, 2.4e-2, 7.2e-2)  # per 256 images
RATE_SEEDS = (100, 101)
FURTHER = 2  # rates beyond the best at most, while it is the lowest or highest
PHOTOGRAPHS = 320  # of each class for the short trainings
CHOICE_BLOCKS = range(3, 13)
_RATE_FIELDS = ("network", "lr", "seed", "miou", "version", "machine")
_MORE_FIELDS = ("lr", "seconds", "machine", "study")


@dataclass(frozen=True)
class Place:
    """Folders of the photographs and of the outputs."""

    data: Path
    output: Path


def dinoskip(config: str, place: Place, *more: str) -> None:
    """Run ``dinoskip run`` on one of the study's configurations; raises CalledProcessError if it fails."""
    data = f"data.imagenette.root={place.data}"
    command = [sys.executable, "-m", "dinoskip", "run", str(CONFIGS / config), data, f"output={place.output}", *more]
    subprocess.run(command, check=True)


def outputs(place: Place, study: str, variant: str, name: str) -> Iterable[Path]:
    """Files of this name that stages of a variant have written."""
    return sorted((place.output / study / "stages").glob(f"*/{variant}/**/{name}"))


# --- rates -------------------------------------------------------------------------------------------


def small_set(place: Place) -> Path:
    """The photographs of the short trainings: the first of each class, linked."""
    small = place.output / "imagenette_small" / "train"
    for folder in sorted((place.data / "train").iterdir()):
        (small / folder.name).mkdir(parents=True, exist_ok=True)
        for photograph in sorted(folder.iterdir())[:PHOTOGRAPHS]:
            link = small / folder.name / photograph.name
            if not link.exists():
                os.symlink(photograph.resolve(), link)
    return small.parent


def read_rates() -> list[dict[str, str]]:
    """The rows of ``rates.csv``, none if it is not there."""
    path = RESULTS / "rates.csv"
    return read_csv(path) if path.is_file() else []


def means(rates: Sequence[Mapping[str, str]], network: str) -> dict[float, float]:
    """Mean mIoU over seeds by rate, ascending, of the rates that have all seeds."""
    by_rate: dict[float, dict[str, float]] = {}
    for row in rates:
        if row["network"] == network:
            by_rate.setdefault(float(row["lr"]), {})[row["seed"]] = float(row["miou"])
    return {lr: statistics.mean(by.values()) for lr, by in sorted(by_rate.items()) if len(by) == len(RATE_SEEDS)}


def next_rate(by_rate: Mapping[float, float]) -> float | None:
    """The next rate to try: one of :data:`RATES`, then one beyond the best while that is at an edge."""
    missing = [lr for lr in RATES if lr not in by_rate]
    if missing:
        return missing[0]
    rates = list(by_rate)
    if len(rates) >= len(RATES) + FURTHER:
        return None
    best = max(rates, key=lambda lr: by_rate[lr])
    if best == rates[0]:
        return round(best * best / rates[1], 10)
    return round(best * best / rates[-2], 10) if best == rates[-1] else None


def chosen_rate(network: str, place: Place) -> float:
    """The network's best rate; short trainings that are missing are made first."""
    while (lr := next_rate(means(read_rates(), network))) is not None:
        for seed in RATE_SEEDS:
            if not any(
                row["network"] == network and float(row["lr"]) == lr and int(row["seed"]) == seed
                for row in read_rates()
            ):
                _short_training(network, lr, seed, place)
    by_rate = means(read_rates(), network)
    return max(by_rate, key=lambda lr: by_rate[lr])


def _short_training(network: str, lr: float, seed: int, place: Place) -> None:
    variant = f"{network}-lr{lr:g}-s{seed}"
    optimizer = f"variants.optimizer=[{{label: lr{lr:g}, name: soap, lr: {lr!r}}}]"
    small = f"data.small.root={small_set(place)}"
    dinoskip("evidence_rates.yaml", place, small, optimizer, "--variant", variant, "--until", "probe")
    (path,) = outputs(place, "evidence-rates", variant, "rows.json")
    values = [
        row.value
        for row in read_rows(path)
        if row.metric == "mIoU" and not row.note and row.block.isdigit() and int(row.block) in CHOICE_BLOCKS
    ]
    assert len(values) == len(CHOICE_BLOCKS)
    row = dict(zip(_RATE_FIELDS, (network, repr(lr), seed, f"{statistics.mean(values):.4f}", *_about()), strict=True))
    write_csv(RESULTS / "rates.csv", _RATE_FIELDS, [*read_rates(), row])


# --- runs --------------------------------------------------------------------------------------------


def read_all() -> list[dict[str, str]]:
    """The rows of ``rows.csv.gz``, none if it is not there."""
    path = RESULTS / "rows.csv.gz"
    return read_csv(path) if path.is_file() else []


def sources() -> Sources:
    """Return all committed rows that the page is made of."""
    rule = RESULTS / "rule.csv"
    second, late_blocks, dial = (
        read_csv(RESULTS.parent / name / "rows.csv") for name in ("dense_seeds", "late_blocks", "dial")
    )
    epochs = read_csv(EPOCHS) if EPOCHS.is_file() else []
    return Sources(
        read_all(), read_rates(), read_csv(rule) if rule.is_file() else [], second, late_blocks, dial, epochs
    )


def run_one(network: str, seed: int, place: Place) -> None:
    """Train and evaluate a network with a seed, and add its rows."""
    lr, variant = chosen_rate(network, place), f"{network}-soap-s{seed}"
    for config in ("evidence.yaml", "evidence_double.yaml"):
        dinoskip(config, place, f"optimizer.lr={lr!r}", "--variant", variant, "--until", "knn")
    rows = [row for path in outputs(place, "evidence", variant, "rows.json") for row in read_rows(path)]
    seconds = sum(float(read_json(path)["seconds"]) for path in outputs(place, "evidence", variant, "timing.json"))
    version, machine = _about()
    extra = dict(zip(_MORE_FIELDS, (repr(lr), f"{seconds:.0f}", machine, version), strict=True))
    names = [field.name for field in fields(EvalResult)]
    kept: list[dict[str, Any]] = [{**row.plain(), **extra} for row in rows if row.metric != "mAcc" and not row.note]
    write_csv(RESULTS / "rows.csv.gz", (*names, *_MORE_FIELDS), [*read_all(), *kept])
    log.info("evidence: %s: %d rows, %.0f s", variant, len(kept), seconds)


def _about() -> tuple[str, str]:
    """The commit and the machine."""
    machine = describe()
    return machine["dinoskip"], f"{machine['cores']} cores, {machine['memory']}, torch {machine['torch']}"


def main() -> int:
    """Make what is missing, or write the page."""
    parser = argparse.ArgumentParser(prog="python -m studies.evidence")
    parser.add_argument("what", choices=["run", "page"])
    parser.add_argument("--data", type=Path, help="Imagenette at 160 pixels: class folders below train and val")
    parser.add_argument("--output", type=Path, default=Path("runs"))
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--seeds", type=int, nargs="+", choices=SEEDS, default=list(SEEDS))
    args = parser.parse_args()
    if args.what == "page":
        write_pages(sources(), RESULTS.with_suffix(".md"), Path("README.md"))
        return 0
    if args.data is None:
        parser.error("run needs --data")
    place = Place(args.data.resolve(), args.output)
    for seed in args.seeds:
        for network in args.networks:
            if not any(row["model"] == f"{network}-soap-s{seed}" for row in read_all()):
                run_one(network, seed, place)
    return 0


if __name__ == "__main__":
    sys.exit(main())
