"""All probes in one stacked fit against the same heads fitted one after the other, in one process.

    python benchmarks/bench_probe.py [--images 100] [--dim 192] [--classes 21] [--blocks 12] [--epochs 3]

Two baselines, each timed on a part of the heads and scaled up: eval.stacked with one head at a time (same tokens and
targets in memory), and plain torch (Linear, interpolate to the label, cross_entropy, autograd, AdamW).
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch

from eval.labelled import LabelledTokens, NormalisedTokens, batchnorm_statistics
from eval.probe import LEARNING_RATES, train_stack
from eval.stacked import HeadStack, Targets, make_targets

SINGLES = 4  # heads timed alone


def made_up(images: int, blocks: int, dim: int, classes: int) -> LabelledTokens:
    rng = np.random.default_rng(0)
    tokens = {
        b: rng.standard_normal((images, 196, dim), dtype=np.float32).astype(np.float16) for b in range(1, blocks + 1)
    }
    labels = [np.kron(rng.integers(0, classes, (5, 7)), np.ones((75, 71), int)).astype(np.uint8) for _ in range(images)]
    return LabelledTokens(tokens, lambda i: labels[i], (14, 14), classes, images)


def seconds(
    data: LabelledTokens, tokens: NormalisedTokens, targets: Targets, blocks: list[int], rates: tuple, epochs: int
) -> float:
    began = time.perf_counter()
    dim = data.tokens[1].shape[-1]
    stack = HeadStack([(b,) for b in blocks], rates, data.num_classes, dim, 1e-4, torch.device("cpu"))
    train_stack(stack, tokens, targets, np.arange(data.count), epochs=epochs, batch_size=16, seed=0)
    return time.perf_counter() - began


def plain_seconds(data: LabelledTokens, tokens: NormalisedTokens, block: int, images: int) -> float:
    """Seconds of plain torch for one head on ``images`` images."""
    head = torch.nn.Linear(data.tokens[block].shape[-1], data.num_classes)
    optimizer = torch.optim.AdamW(head.parameters(), lr=1e-3, weight_decay=1e-4)
    began = time.perf_counter()
    for at in range(0, images, 4):
        rows = np.arange(at, min(at + 4, images))
        target = torch.from_numpy(np.stack([data.label(int(i)) for i in rows])).long()
        logits = head(tokens.batch(rows)[block]).view(len(rows), *data.grid, -1).permute(0, 3, 1, 2)
        whole = torch.nn.functional.interpolate(logits, size=target.shape[1:], mode="bilinear", align_corners=False)
        loss = torch.nn.functional.cross_entropy(whole, target, ignore_index=255)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
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
    targets = make_targets(data.label, range(args.images), args.classes, data.grid, refine=2)
    seconds(data, everything, targets, blocks, LEARNING_RATES, 1)  # warm
    stacked = seconds(data, everything, targets, blocks, LEARNING_RATES, args.epochs)
    alone = 0.0
    for i in range(SINGLES):
        block = blocks[i * len(blocks) // SINGLES]
        one = NormalisedTokens(data, [block], device, statistics)
        alone += seconds(data, one, targets, [block], (LEARNING_RATES[i],), args.epochs)
    heads, few = len(blocks) * len(LEARNING_RATES), min(16, args.images)
    plain = plain_seconds(data, everything, 1, few) * heads * args.epochs * args.images / few
    alone *= heads / SINGLES
    print(f"{heads} heads, {args.images} images, {args.epochs} epochs, {torch.get_num_threads()} threads")
    print(f"stacked {stacked:.2f} s; one after the other {alone:.2f} s; plain torch at label size {plain:.2f} s")
    print(f"ratio {alone / stacked:.1f} to one after the other, {plain / stacked:.1f} to plain torch")


if __name__ == "__main__":
    main()
