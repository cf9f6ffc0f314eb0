# Frozen: rows docs/results/late_blocks/epochs.csv, commit ea8f645b, 2026-11-26.
"""Effects of skips and of the learning rate: *skip* and *mixing* at each other's rate, measured at every epoch.

python -m studies.late_rates run --data IMAGENETTE [--output runs] [--runs skip=0.0027 mixing=0.024] [--seeds 0 1]
python -m studies.late_rates published NAME=WEIGHTS [--images 40] [--size 224]

The networks are the third study's (``configs/results/evidence.yaml``), the scenes those of
:mod:`studies.late_blocks`. ``docs/results/late_blocks/epochs.csv`` and ``published.csv`` are kept;
``python -m studies.late_blocks`` writes the page.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from benchmarks.pages import replace_rows
from dinoskip.io.files import sha256_file
from dinoskip.models import load_backbone
from dinoskip.runtime.console import log
from studies.late_blocks import Read, Scenes, by_position, corloc, cut, read, scenes, without_position
from studies.late_blocks_page import AS_IS, BLOCKS, COMPLETE, EPOCHS, OUT, PUBLISHED, SHARE, WITHOUT, write_page

CONFIG = "configs/results/evidence.yaml"
EPOCH_COUNT = 6
EXCHANGED = ("skip=0.0027", "mixing=0.024")
"""Each network at the rate that the study chose for the other (``docs/results/evidence/rates.csv``)."""
_KEYS = ("network", "rate", "seed", "epoch", "measure")
_COLUMNS = ("network", "rate", "seed", "epoch", "weights", "measure", *map(str, BLOCKS))


def train(network: str, rate: float, seed: int, data: Path, output: Path) -> list[Path]:
    """Train a network of the study at a rate, or go on with it; return the weights of every epoch, 0 the first."""
    name, variant = f"rates-{network}-{rate:g}-{seed}", f"{network}-soap-s{seed}"
    settings = {
        "name": name,
        "output": output,
        "data.imagenette.root": data,
        "optimizer.lr": repr(rate),
        "pretrain.keep_epochs": list(range(1, EPOCH_COUNT)),  # the last is always kept, and epoch 0 is made anew
        "evaluate.epochs": list(range(EPOCH_COUNT + 1)),
    }
    command = [sys.executable, "-m", "dinoskip", "run", CONFIG, *(f"{key}={value}" for key, value in settings.items())]
    subprocess.run([*command, "--variant", variant, "--until", "weights"], check=True)
    folder = output / name / "stages" / "weights" / variant
    return [next(folder.glob(f"ep{epoch}/*/*.safetensors")) for epoch in range(EPOCH_COUNT + 1)]


def measured(features: Read, data: Scenes) -> dict[str, dict[int, float]]:
    """Return the share of the keys' variance by position, complete graphs, and CorLoc, in percent, by block."""
    every: dict[str, dict[int, float]] = {name: {} for name in (SHARE, COMPLETE, AS_IS, WITHOUT, OUT)}
    for block, key in features.tokens["key"].items():
        cuts = cut(key, features.grid)
        every[SHARE][block] = by_position(key, features.grid)
        every[COMPLETE][block] = 100 * float(np.mean([one.complete for one in cuts]))
        every[AS_IS][block] = corloc(cuts, features.patch, data)
        every[WITHOUT][block] = corloc(cut(without_position(key), features.grid), features.patch, data)
        every[OUT][block] = corloc(cut(features.tokens["out"][block], features.grid), features.patch, data)
    return every


def rows_of(weights: Path, data: Scenes, about: Mapping[str, object]) -> list[dict[str, object]]:
    """Return a row for each measure of a network, with a column for each block."""
    every = measured(read(load_backbone(str(weights)), data), data)
    about = {**about, "weights": sha256_file(weights)}
    return [
        {**about, "measure": name, **{str(block): f"{value:.2f}" for block, value in by.items()}}
        for name, by in every.items()
    ]


def run(data: Path, output: Path, runs: Sequence[str], seeds: Sequence[int]) -> None:
    """Train and measure what is missing."""
    pictures = scenes(100, 64)
    for seed in seeds:
        for text in runs:
            network, _, rate = text.partition("=")
            for epoch, weights in enumerate(train(network, float(rate), seed, data, output)):
                about = {"network": network, "rate": f"{float(rate):g}", "seed": seed, "epoch": epoch}
                replace_rows(EPOCHS, _COLUMNS, rows_of(weights, pictures, about), _KEYS)
            log.info("late rates: %s with seed %d is measured", text, seed)


def main() -> int:
    """Run the command that the module's docstring shows."""
    parser = argparse.ArgumentParser(prog="python -m studies.late_rates")
    parser.add_argument("what", choices=["run", "published"])
    parser.add_argument("network", nargs="?", metavar="NAME=WEIGHTS")
    parser.add_argument("--data", type=Path, help="Imagenette at 160 pixels: class folders below train and val")
    parser.add_argument("--output", type=Path, default=Path("runs"))
    parser.add_argument("--runs", nargs="+", default=list(EXCHANGED), metavar="NETWORK=RATE")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--images", type=int, default=40)
    parser.add_argument("--size", type=int, default=224)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.what == "run":
        if args.data is None:
            parser.error("run needs --data")
        run(args.data.resolve(), args.output, args.runs, args.seeds)
    else:
        name, _, weights = (args.network or "").partition("=")
        if not weights:
            parser.error("published needs NAME=WEIGHTS")
        about = {"network": name, "images": args.images, "size": args.size}
        columns = ("network", "images", "size", "weights", "measure", *map(str, BLOCKS))
        rows = rows_of(Path(weights), scenes(args.images, args.size), about)
        replace_rows(PUBLISHED, columns, rows, ("network", "images", "size", "measure"))
    write_page()
    return 0


if __name__ == "__main__":
    sys.exit(main())
