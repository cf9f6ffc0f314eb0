"""Time, memory and recall of finding neighbours in large memories: ``python -m benchmarks.bench_neighbours``.

    python -m benchmarks.bench_neighbours [--vectors 1281167] [--dim 384] [--queries 1000] [--k 20]
    python -m benchmarks.bench_neighbours --vectors 10000000 --dim 64 --k 30

The first has the size of k-NN on ImageNet with ViT-S, the second the number of patches of a retrieval memory of all of
VOC at 512 pixels (10,582 × 1,024), in 64 dimensions, which fit. Vectors are made up: 1,000 kinds with centres on the
sphere, each spread along 32 directions shared by all, of falling strength, and noise; queries are of the same law.

``flat`` is faiss's exact search, ``torch`` products and ``topk`` on the same vectors, ``ivf`` the inverted lists with
32 of 4·√M searched. Printed are processor seconds to build, processor milliseconds a query, the most memory beyond the
vectors (RssAnon, every 10 ms), and recall: the share of the exact k neighbours that are found, and of queries whose
nearest is. Exit code 1 if the two exact ways differ by more than rounding.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.measuring import peak, seconds
from eval.neighbours import Neighbours

KINDS, DIRECTIONS, CHUNK = 1000, 32, 2**17
Found = tuple[NDArray[np.float32], NDArray[np.int64]]


def made_up(count: int, dim: int, seed: int) -> NDArray[np.float32]:
    """Return unit vectors (count, dim); ``seed`` draws them, their kinds are always the same."""
    law, rng = np.random.default_rng(0), np.random.default_rng([1, seed])
    centres = law.standard_normal((KINDS, dim), dtype=np.float32)
    spread = law.standard_normal((DIRECTIONS, dim), dtype=np.float32)
    spread *= np.arange(1, DIRECTIONS + 1, dtype=np.float32)[:, None] ** -0.5
    vectors = np.empty((count, dim), dtype=np.float32)
    for at in range(0, count, CHUNK):
        part = vectors[at : at + CHUNK]
        part[:] = rng.standard_normal(part.shape, dtype=np.float32) * 0.3
        part += rng.standard_normal((len(part), DIRECTIONS), dtype=np.float32) @ spread * 0.5
        part += centres[rng.integers(0, KINDS, len(part))]
        part /= np.linalg.norm(part, axis=1, keepdims=True)
    return vectors


def measured(title: str, build: Callable[[], Callable[[], Found]], queries: int) -> tuple[str, Found]:
    """Build and search; the line to print, and what was found."""
    times: list[float] = []
    search: list[Callable[[], Found]] = []
    neighbours: list[Found] = []

    def both() -> None:
        times.append(seconds(lambda: search.append(build())))
        times.append(seconds(lambda: neighbours.append(search[0]())))

    memory = peak(both)
    return f"{title:6s}{times[0]:10.1f} s{1000 * times[1] / queries:12.2f} ms{memory / 1e9:12.2f} GB", neighbours[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("vectors", 1_281_167), ("dim", 384), ("queries", 1000), ("k", 20)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    memory, queries = made_up(args.vectors, args.dim, 0), made_up(args.queries, args.dim, 1)
    print(f"{args.vectors:,d} × {args.dim}: {memory.nbytes / 1e9:.2f} GB; {args.queries} queries, k {args.k}")
    print(f"{'':6s}{'build':>12s}{'a query':>15s}{'memory beyond':>15s}  recall of k / of the nearest", flush=True)
    cpu = torch.device("cpu")

    def torch_search() -> Found:
        return Neighbours._by_torch(torch.from_numpy(queries), torch.from_numpy(memory), args.k)

    line, exact = measured("torch", lambda: torch_search, args.queries)
    print(line, flush=True)
    for kind in ("flat", "ivf"):

        def build(kind: str = kind) -> Callable[[], Found]:
            index = Neighbours(memory, cpu, kind)  # type: ignore[arg-type]
            return lambda: index.search(queries, args.k)

        line, neighbours = measured(kind, build, args.queries)
        shared = [len(np.intersect1d(a, b)) for a, b in zip(exact[1], neighbours[1], strict=True)]
        first = float((neighbours[1] == exact[1][:, :1]).any(1).mean())
        print(f"{line}   {sum(shared) / exact[1].size:.4f} / {first:.4f}", flush=True)
        if kind == "flat" and np.abs(neighbours[0] - exact[0]).max() > 1e-5:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
