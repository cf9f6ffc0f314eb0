# Frozen: rows docs/results/initialisations.md, commit 41fd7fa3, 2026-11-25.
"""The command: run what is not there yet, or write the page."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from dinoskip.io.files import write_json
from dinoskip.runtime.environment import describe
from studies.initialisations.candidates import CANDIDATES
from studies.initialisations.plan import MACHINE, all_runs, done
from studies.initialisations.protocol import Data, build, measure, run
from studies.initialisations.table import write_page


def main() -> int:
    """Go through the plan; an interrupted run is begun anew the next time."""
    parser = argparse.ArgumentParser(prog="python -m studies.initialisations")
    parser.add_argument("--out", type=Path, default=Path("runs/initialisations"), help="folder of the runs' files")
    parser.add_argument("--data", type=Path, help="Imagenette: train and val, a folder a class")
    parser.add_argument("--most", type=int, help="stop after so many runs")
    parser.add_argument("--only", nargs="+", choices=CANDIDATES, metavar="NAME", help="these initialisations alone")
    parser.add_argument("--table", type=Path, help="write the page of what is there, and run nothing")
    args = parser.parse_args()
    if args.table:
        write_page(done(args.out), args.out, args.table)
        return 0
    if args.data is None:
        parser.error("--data is required")
    args.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    write_json(args.out / MACHINE, describe())
    data, count = Data.read(args.data, args.out), 0
    for planned in all_runs(args.out):
        if args.only and planned.name not in args.only:
            continue
        if (args.out / planned.file).is_file() or count == args.most:
            continue
        if not (args.out / planned.fresh_file).is_file():
            fresh = measure(build(planned.name, data, planned.depth, planned.seed), data)
            write_json(args.out / planned.fresh_file, fresh)
        result = run(planned.name, planned.config, planned.seed, planned.depth, data)
        write_json(args.out / planned.file, result)
        count += 1
        shown = result.get("failed") or f"accuracy {result['accuracy']:.1f}, last block {result['probe_miou'][-1]:.1f}"
        print(f"{planned.file}: {shown}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
