"""Seconds of an epoch of every arm at the slots' sizes, with AdamW and SOAP: a line of JSON each.

python -m studies.slots_steps --out DIR [--seconds 120] [--toy]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.gpu.kit import Kit
from benchmarks.gpu.lines import RESULTS, read
from benchmarks.gpu.steps import TINY, Asked, Reporter, Sizes, ours
from dinoskip.pipeline.study import load_study
from dinoskip.runtime.distributed import choose_device
from dinoskip.settings.config import dump
from studies.slots_arms import ARMS, CONFIG, ROOT, optimizer

BATCH, IMAGES = 256, 9469
STEPS_AN_EPOCH = IMAGES // BATCH  # the last, smaller batch is left out
SIZES = Sizes("vit_small_patch16", 384, 6, 12, 8192, 160, 64, 6)
OPTIMIZERS = ("adamw", "soap")
LEAST = 15.0  # seconds with which another network is begun: it compiles first


def main(argv: Sequence[str] | None = None) -> int:
    """Measure the arms, all with AdamW first."""
    parser = argparse.ArgumentParser(prog="python -m studies.slots_steps")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--toy", action="store_true", help="sizes for a CPU, not compiled, AdamW alone")
    args = parser.parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    if args.toy:
        torch.set_num_threads(1)
    kit = Kit("steps", args.out, args.seconds, time.time(), args.toy, choose_device(args.device))
    reporter, (_, variants) = Reporter(kit), load_study(ROOT / CONFIG)
    models = {variant.name.partition("-")[0]: variant.model for variant in variants}
    sizes, batch = (TINY, 4) if args.toy else (SIZES, BATCH)
    measured = {row["name"] for row in read([args.out / RESULTS])} if (args.out / RESULTS).is_file() else set()
    for name in OPTIMIZERS[:1] if args.toy else OPTIMIZERS:
        for arm, label in ARMS.items():
            title = epoch_name(arm, name)
            if title in measured or not kit.has(LEAST):
                continue
            with kit.attempt(title):
                model = {key: value for key, value in dump(models[label]).items() if key not in _SIZE}  # type: ignore[arg-type]
                settings = {key: value for key, value in optimizer(name, 5e-4).items() if key != "label"}
                took = reporter.report(
                    f"step, {label}, {name}", ours(kit, batch, Asked(model, settings, not args.toy), sizes)
                )
                kit.say(title, s=took * STEPS_AN_EPOCH / 1e3)
    return 0


_SIZE = ("name", "img_size", "depth")


def epoch_name(arm: str, name: str) -> str:
    """Name of the line with an arm's seconds an epoch."""
    return f"epoch, {ARMS[arm]}, {name}"


def slowest(folder: Path, name: str = "adamw") -> float | None:
    """Seconds of an epoch of the slowest arm; None unless all have been measured."""
    path = folder / RESULTS
    rows = read([path]) if path.is_file() else []
    seconds = {row["name"]: float(row["s"]) for row in rows if "s" in row}
    found = [seconds.get(epoch_name(arm, name)) for arm in ARMS]
    return None if None in found else max(value for value in found if value is not None)


if __name__ == "__main__":
    sys.exit(main())
