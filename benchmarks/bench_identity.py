"""Cost of recognising a data set and a checkpoint again: the share of a run's time.

A set of over 1 GiB (sparse files) is known by names and sizes alone, as it was, and by sizes, times and a sample; a
checkpoint of a ViT-S/16 with DINO's heads is saved and loaded with and without looking for values that are not finite.

Run: python -m benchmarks.bench_identity [--files 100000]     (about a minute)
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from dinoskip.data.listing import content_marks
from dinoskip.optim import build_optimizer
from dinoskip.training import PretrainJob, checkpoint
from dinoskip.training.dino import DINO


def seconds(call: Callable[[], object]) -> float:
    """The shortest of three calls."""
    taken = []
    for _ in range(3):
        began = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began)
    return min(taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=100_000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = [folder / f"{number:07d}.jpg" for number in range(args.files)]
        for path in paths:
            path.touch()
            os.truncate(path, 110_000)
        sizes, sample = seconds(lambda: [path.stat().st_size for path in paths]), seconds(lambda: content_marks(paths))
        print(f"{args.files} files: sizes {sizes:.2f} s, sizes, times and a sample {sample:.2f} s")
        job = PretrainJob.model_validate({"model": {"name": "vit_small_patch16"}, "pretrain": {"compile": False}})
        objective = DINO(job, job.pretrain, 100, torch.device("cpu"))
        optimizer = build_optimizer(objective.student, job.optimizer)
        for parameter in objective.student.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        info = {"step": 1, "epoch": 0, "epochs": 1, "seed": 0, "steps_per_epoch": 100, "init": "", "optimizer": ""}
        content = checkpoint.collect(objective, optimizer)
        saved: list[Path] = []

        def save(run: str) -> None:
            saved.append(checkpoint.save(folder / "run", content, job.model, info, (), run))

        for run in ("", "f" * 64):
            print(f"save a checkpoint of {content.nbytes / 2**20:.0f} MiB, run {run[:3] or 'not'} named: "
                  f"{seconds(lambda run=run: save(run)):.2f} s")  # fmt: skip
        load = seconds(lambda: checkpoint.load(saved[-1], objective, optimizer, "f" * 64))
        look, checkpoint._check_values = checkpoint._check_values, lambda *_: None
        plain = seconds(lambda: checkpoint.load(saved[-1], objective, optimizer))
        checkpoint._check_values = look
        print(f"load it: {plain:.2f} s, with dtypes, finite values and the run looked at {load:.2f} s")


if __name__ == "__main__":
    main()
