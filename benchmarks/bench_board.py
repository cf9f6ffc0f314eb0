"""Seconds of a board of many rows: reading, ranking all pairs of every table, and writing page and CSV files.

    python -m benchmarks.bench_board [--networks 90] [--repeats 3]

Each network has twelve blocks on twelve made-up data sets, so that 90 networks are 12,960 rows, in three studies
without scores by image. Wall and processor time of one process, the least of the repeats; the goal is under 3 seconds.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.measuring import least_seconds
from dinoskip.results.rows import EvalResult, write_rows
from visualize.board import make_board, read_sources, write_board

BLOCKS, SETS, STUDIES = 12, 12, 3


def rows_of(networks: range) -> list[EvalResult]:
    """Rows of some networks: of every block on every set, a normal number about a network's own."""
    rng = np.random.default_rng(networks.start)
    return [
        EvalResult(
            "mIoU", float(40 + network % 7 + rng.normal()), "probe", str(block), f"set{number}", "val", 100,
            model=f"net{network}", initialisation="skipless", optimizer="adamw", facet="out", norm="final",
            protocol="linear", resolution="224", classes=20, seed=network % 3, low=38.0, high=48.0,
            weights=f"{network:064x}",
        )
        for network in networks for block in range(1, BLOCKS + 1) for number in range(SETS)
    ]  # fmt: skip


def main() -> None:
    """Write the rows, then time boards of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", type=int, default=90)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    each = -(-args.networks // STUDIES)
    with tempfile.TemporaryDirectory() as folder:
        root, walls = Path(folder), []
        studies = [range(first, min(first + each, args.networks)) for first in range(0, args.networks, each)]
        for number, networks in enumerate(studies):
            (root / f"study{number}").mkdir()
            write_rows(root / f"study{number}" / "rows.json", rows_of(networks))
        sources = [str(root / f"study{number}") for number in range(len(studies))]

        def board() -> None:
            began = time.perf_counter()
            write_board(make_board(read_sources(sources)), root / "board", "Board")
            walls.append(time.perf_counter() - began)

        processor = least_seconds(board, args.repeats)
        count = args.networks * BLOCKS * SETS
        print(f"board of {count:,} rows: {processor:.2f} s of processor time, {min(walls):.2f} s of the clock")


if __name__ == "__main__":
    main()
