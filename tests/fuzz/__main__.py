"""``python -m tests.fuzz --cases 50000 --out runs/fuzz.jsonl``: label files of every kind spoilt, and a table of counts.

Pieces of 500 cases append a line to the log each, so that an interrupted command goes on where it was. Exit code 1
where a score would have changed without a word, or an error did not name its file.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.chaos.outcomes import read_log
from tests.fuzz.test_labels import MAKERS, attack_labels

PIECE = 500


def piece(kind: str, number: int, cases: int = PIECE) -> dict[str, Any]:
    """Spoil a kind ``cases`` times; the line of the log."""
    line: dict[str, Any] = {"kind": kind, "number": number}
    with tempfile.TemporaryDirectory() as folder:
        try:
            return line | attack_labels(kind, Path(folder), cases, number)
        except Exception:
            return line | {"fault": traceback.format_exc()}


def table(entries: Iterable[Mapping[str, Any]]) -> str:
    """Cases by kind of labels and outcome, as a Markdown table."""
    counts = {kind: Counter[str]() for kind in MAKERS}
    for entry in entries:
        counts[entry["kind"]] += Counter(
            {"refused": entry.get("refused", 0), "equal": entry.get("equal", 0), "faults": int("fault" in entry)}
        )
    rows = {**counts, "all": sum(counts.values(), Counter())}
    lines = ["| labels | cases | refused, naming the file | read as before | faults |", "|---|---:|---:|---:|---:|"]
    for name, row in rows.items():
        refused, equal = row["refused"], row["equal"]
        lines.append(f"| {name} | {refused + equal:,} | {refused:,} | {equal:,} | {row['faults']} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--cases", type=int, default=50_000, help="of all kinds together (default: 50000)")
    parser.add_argument("--out", type=Path, default=Path("runs/fuzz.jsonl"), help="log (default: runs/fuzz.jsonl)")
    args = parser.parse_args()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    done = {(entry["kind"], entry["number"]) for entry in read_log(args.out)}
    began = time.monotonic()
    for number in range(1, -(-args.cases // (PIECE * len(MAKERS))) + 1):
        for kind in MAKERS:
            if (kind, number) not in done:
                with open(args.out, "a") as log:
                    log.write(json.dumps(piece(kind, number)) + "\n")
    entries = read_log(args.out)
    print(f"{table(entries)}\n\n{(time.monotonic() - began) / 60:.0f} minutes")
    return int(any("fault" in entry for entry in entries))


if __name__ == "__main__":
    sys.exit(main())
