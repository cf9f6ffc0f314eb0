"""All probes in one stacked fit against the same heads fitted one after the other, in one process.

    python benchmarks/bench_probe.py [--images 100] [--dim 192] [--classes 21] [--blocks 12] [--epochs 3]

Prints seconds of both and their ratio. Both use eval.stacked with the same tokens in memory; "one after the other"
calls it with one block and one learning rate at a time. It is timed on a part of the heads and scaled up.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch

from eval.labelled import LabelledTokens, NormalisedTokens, batchnorm_statistics
from eval.probe import LEARNING_RATES, _fit
from eval.stacked import HeadStack

SINGLES = 4  # heads timed alone


def made_up(images: int, blocks: int, dim: int, classes: int) -> LabelledTokens:
    rng = np.random.default_rng(0)
    tokens = {
        b: rng.standard_normal((images, 196, dim), dtype=np.float32).astype(np.float16) for b in range(1, blocks + 1)
    }
    labels = [np.kron(rng.integers(0, classes, (5, 7)), np.ones((75, 71), int)).astype(np.uint8) for _ in range(images)]
    return LabelledTokens(tokens, lambda i: labels[i], (14, 14), classes, images)


def seconds(
    data: LabelledTokens, tokens: NormalisedTokens, blocks: list[int], rates: tuple[float, ...], epochs: int
) -> float:
    began = time.perf_counter()
    dim = data.tokens[1].shape[-1]
    stack = HeadStack([(b,) for b in blocks], rates, data.num_classes, dim, 1e-4, torch.device("cpu"))
    _fit(stack, data, tokens, np.arange(data.count), epochs=epochs, batch_size=16, refine=2, seed=0)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("images", 100), ("dim", 192), ("classes", 21), ("blocks", 12), ("epochs", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    data = made_up(args.images, args.blocks, args.dim, args.classes)
    blocks, device = list(data.tokens), torch.device("cpu")
    statistics = {b: batchnorm_statistics(data.tokens[b], np.arange(args.images), device) for b in blocks}
    everything = NormalisedTokens(data, blocks, device, statistics)
    seconds(data, everything, blocks, LEARNING_RATES, 1)  # warm
    stacked = seconds(data, everything, blocks, LEARNING_RATES, args.epochs)
    alone = 0.0
    for i in range(SINGLES):
        block = blocks[i * len(blocks) // SINGLES]
        one = NormalisedTokens(data, [block], device, statistics)
        alone += seconds(data, one, [block], (LEARNING_RATES[i],), args.epochs)
    heads = len(blocks) * len(LEARNING_RATES)
    print(f"{heads} heads, {args.images} images, {args.epochs} epochs, {torch.get_num_threads()} threads")
    print(f"stacked {stacked:.2f} s; one after the other {alone * heads / SINGLES:.2f} s ({SINGLES} timed)")
    print(f"ratio {alone * heads / SINGLES / stacked:.1f}")


if __name__ == "__main__":
    main()
