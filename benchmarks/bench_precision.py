"""A training step of a ViT in bfloat16 on a CPU, one thread: ``python -m benchmarks.bench_precision``.

Claim (dinoskip/runtime/precision.py): of a small network with 37 tokens torch's autocast alone makes a step no faster
than in float32, because attention goes back slowly in bfloat16; with attention in float32 it is, on a processor with
AMX."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch

from dinoskip.models import create_model
from dinoskip.runtime.precision import bf16_autocast


def main() -> None:
    """Print the three steps' times and their ratios to float32's."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="vit_mini_patch8")
    parser.add_argument("--size", type=int, default=48, help="side of the images")
    parser.add_argument("--batch", type=int, default=64)
    args = parser.parse_args()
    torch.set_num_threads(1)
    images = torch.rand(args.batch, 3, args.size, args.size)
    model = create_model(args.model, img_size=args.size)
    cpu = torch.device("cpu")
    contexts: dict[str, Callable[[], AbstractContextManager[object]]] = {
        "float32": nullcontext,
        "bfloat16, torch's autocast": lambda: torch.autocast("cpu", torch.bfloat16),
        "bfloat16, attention in float32": lambda: bf16_autocast(cpu),
    }

    def seconds(context: Callable[[], AbstractContextManager[object]]) -> float:
        times = []
        for _ in range(6):
            start = time.process_time()  # of this process: other work on the machine does not count
            model.zero_grad()
            with context():
                loss = model.forward_features(images).float().square().mean()
            loss.backward()
            times.append(time.process_time() - start)
        return statistics.median(times[1:])

    plain = seconds(contexts["float32"])
    for name, context in contexts.items():
        taken = seconds(context)
        print(f"{name:32s} {taken:.3f} s a step of {args.batch} images, {plain / taken:.2f} x as fast as float32")


if __name__ == "__main__":
    main()
