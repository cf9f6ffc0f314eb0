"""Cost of MKL_CBWR=AUTO,STRICT: a step of SOAP, decompositions and products, against MKL left alone.

    python -m benchmarks.bench_arithmetic [--pairs 12] [--blocks 4] [--dim 192] [--threads 1]

MKL reads the variable once a process, so there are two, one each way, which take turns: of a pair of measurements one
follows the other, the order changes from pair to pair, and the median of the ratios (with, by without) is printed with
the middle half of them. Each way says what MKL was told.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

WAYS = {"strict": "AUTO,STRICT", "as it is": ""}


def work(blocks: int, dim: int, threads: int) -> dict[str, Callable[[], object]]:
    """The measured operations by name."""
    import torch  # in the two processes alone, with the variable set

    from dinoskip.models import create_model
    from dinoskip.optim import SoapConfig, build_optimizer

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = create_model("vit_tiny_patch16", depth=blocks, embed_dim=dim, num_heads=dim // 64)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    period = 10
    optimizer = build_optimizer(model, SoapConfig(precondition_frequency=period))
    optimizer.step()
    square, stack = torch.randn(dim, dim), torch.randn(4 * blocks, dim, dim)
    tokens, weight = torch.randn(8 * 197, dim), torch.randn(4 * dim, dim)
    return {
        f"{period} steps of SOAP, one refresh": lambda: [optimizer.step() for _ in range(period)],
        f"QR of {len(stack)} matrices of {dim}": lambda: torch.linalg.qr(stack),
        f"eigh of one matrix of {dim}": lambda: torch.linalg.eigh(square + square.mT),
        f"{len(stack)} products of {dim} x {dim}": lambda: torch.bmm(stack, stack),
        f"tokens {len(tokens)} x {dim} by a weight {len(weight)} x {dim}": lambda: tokens @ weight.mT,
    }


def serve(args: argparse.Namespace) -> None:
    """One way: say the mode, then answer each line, the number of an operation, with its seconds."""
    from dinoskip.runtime.arithmetic import arithmetic

    operations = work(args.blocks, args.dim, args.threads)
    for operation in operations.values():
        operation()
    print(json.dumps([list(operations), arithmetic()]), flush=True)
    for line in sys.stdin:
        operation = list(operations.values())[int(line)]
        began, times = time.perf_counter(), 0
        while time.perf_counter() - began < 0.2 or not times:
            operation()
            times += 1
        print((time.perf_counter() - began) / times, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("pairs", 12), ("blocks", 4), ("dim", 192), ("threads", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args)
        return
    command = [sys.executable, "-m", "benchmarks.bench_arithmetic", *sys.argv[1:], "--serve"]
    ways = [
        subprocess.Popen(command, env=os.environ | {"MKL_CBWR": value}, text=True, stdin=-1, stdout=-1)
        for value in WAYS.values()
    ]

    def said(way: subprocess.Popen[str]) -> str:
        assert way.stdout is not None
        return way.stdout.readline()

    def seconds(way: subprocess.Popen[str], number: int) -> float:
        assert way.stdin is not None
        print(number, file=way.stdin, flush=True)
        return float(said(way))

    (names, mode), (_, plain) = (json.loads(said(way)) for way in ways)
    print(f"{mode['processor']}, {args.threads} threads: MKL_CBWR {mode['MKL_CBWR']} by {plain['MKL_CBWR']}")
    for number, name in enumerate(names):
        ratios, least = [], [float("inf")] * 2
        for pair in range(args.pairs):
            took = {way: seconds(ways[way], number) for way in ((0, 1) if pair % 2 else (1, 0))}
            ratios.append(took[0] / took[1])
            least = [min(least[way], took[way]) for way in (0, 1)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(f"{name}: {middle:.2f} ({low:.2f} to {high:.2f}); least {1e3 * least[0]:.2f} by {1e3 * least[1]:.2f} ms")
    for way in ways:
        way.kill()
        way.wait()


if __name__ == "__main__":
    main()
