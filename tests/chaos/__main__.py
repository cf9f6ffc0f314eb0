"""``python -m tests.chaos --minutes 60 --seed 0 --out runs/chaos``: one piece of a chaos run, then the table of all.

Pieces append to ``OUT/WORK/log.jsonl``, an event a line; ``--table`` prints the table alone. Exit code 1 after a fault.
``--keep`` copies the logs to ``tests/chaos/logs`` and writes the table of all logs there into ``docs/faults.md``.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.chaos.campaign import run
from tests.chaos.disturbances import TABLE
from tests.chaos.outcomes import keep, kept, read_log, table, with_table
from tests.chaos.works import WORKS

LOGS = Path(__file__).with_name("logs")
PAGE = Path(__file__).parents[2] / "docs" / "faults.md"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("--minutes", type=float, default=60, help="length of this piece (default: 60)")
    parser.add_argument("--seed", type=int, default=0, help="of all that is drawn (default: 0)")
    parser.add_argument("--out", type=Path, default=Path("runs/chaos"), help="log and work (default: runs/chaos)")
    parser.add_argument(
        "--work", choices=WORKS, help="what is disturbed (default: one after the other, the study for most of the time)"
    )
    parser.add_argument(
        "--kind", action="append", choices=[kind.name for kind in TABLE], default=[], metavar="NAME",
        help="a disturbance that is drawn; may be given several times (default: all)",
    )  # fmt: skip
    parser.add_argument("--table", action="store_true", help="print the table of all pieces so far, and end")
    parser.add_argument(
        "--keep", action="store_true", help="keep the logs of --out, write the table of all kept ones into the page"
    )
    args = parser.parse_args()
    if args.keep:
        keep(args.out, LOGS)
        PAGE.write_text(with_table(PAGE.read_text(), kept(LOGS)))
        return 0
    shares = {args.work: 1.0} if args.work else {name: work.share for name, work in WORKS.items()}
    faults = 0
    for name, share in shares.items() if not args.table else ():
        faults += run(args.out.absolute() / name, args.seed, args.minutes * share, name, args.kind)
    print(table(entry for path in sorted(args.out.glob("*/log.jsonl")) for entry in read_log(path)))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
