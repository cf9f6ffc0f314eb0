"""Peak memory of a probe run of full VOC size against its bound: ``python -m benchmarks.bench_memory``.

    DINOSKIP_MEMORY=1 python -m benchmarks.bench_memory [--train 1464] [--val 1449] [--blocks 12] [--rates 5]

Tokens of ViT-S at 224 pixels, (N, 196, 384) float16, a memory map a block: 5.3 GB of made-up numbers in a temporary
folder, 5.3 GiB as float32 for the training images alone. ``eval.probe.fit_probes`` fits every block × learning rate and
scores at label size (500×375). Measured is the most memory that the run takes beyond what the program had before
(RssAnon of Linux, read every 10 ms): pages of memory maps, which the system takes back when it needs them, are not in
it. The bound is DINOSKIP_MEMORY (default 4 GiB); exit code 1 if it was passed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from benchmarks.bench_scoring import regions
from benchmarks.measuring import anonymous, peak
from dinoskip.runtime.environment import memory_limit
from eval.labelled import LabelledTokens
from eval.probe import fit_probes

GRID, DIM, CLASSES, LABEL = (14, 14), 384, 21, (375, 500)


def tokens_on_disk(folder: Path, name: str, count: int, blocks: int) -> dict[int, np.ndarray]:
    """Write ``count`` images' tokens a block, 32 images over and over, and return them as memory maps."""
    rng = np.random.default_rng(0)
    maps = {}
    for block in range(1, blocks + 1):
        tokens = rng.standard_normal((32, GRID[0] * GRID[1], DIM), dtype=np.float32).astype(np.float16)
        path = folder / f"{name}{block}.npy"
        stored = np.lib.format.open_memmap(path, "w+", np.float16, (count, *tokens.shape[1:]))
        for at in range(0, count, len(tokens)):
            stored[at : at + 32] = tokens[: count - at]
        del stored
        maps[block] = np.load(path, mmap_mode="r")
    return maps


def simulated(folder: Path, name: str, count: int, blocks: int, size: tuple[int, int] = LABEL) -> LabelledTokens:
    """Tokens with label maps of ``size``, sixteen of them over and over."""
    rng = np.random.default_rng(1)
    labels = [regions(CLASSES, size, rng) for _ in range(16)]
    return LabelledTokens(tokens_on_disk(folder, name, count, blocks), lambda i: labels[i % 16], GRID, CLASSES, count)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("train", 1464), ("val", 1449), ("blocks", 12), ("epochs", 1), ("rates", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    limit = memory_limit()
    rates = np.geomspace(1e-4, 1e-2, args.rates).tolist()
    with tempfile.TemporaryDirectory() as folder:
        train, val = (
            simulated(Path(folder), name, count, args.blocks)
            for name, count in (("train", args.train), ("val", args.val))
        )
        began = time.perf_counter()
        most = peak(lambda: fit_probes(train, val, list(train.tokens), rates, args.epochs, device="cpu"))
        taken = time.perf_counter() - began
    size = sum(stored.nbytes for data in (train, val) for stored in data.tokens.values()) / 2**30
    print(f"{args.train} + {args.val} images, {args.blocks} blocks × {args.rates} rates: {size:.2f} GiB on disk")
    print(f"peak {most / 2**30:.3f} GiB, bound {limit / 2**30:.3f}, the program itself {anonymous() / 2**30:.2f}")
    print(f"{taken:.0f} s, {torch.get_num_threads()} thread(s)")
    return 0 if most <= limit else 1


if __name__ == "__main__":
    sys.exit(main())
