"""``python -m tests.fuzz --cases 50000 --out runs/fuzz.jsonl``: spoils label files of every kind, and counts.

Pieces of 500 cases append a line to the log each, so that a stopped command goes on where it was. Exit code 1
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
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.chaos.outcomes import read_log
from tests.fuzz import test_labels
from tests.helpers.label_borders import Maker, Read
from tests.helpers.label_sets import read_everything

ROOT = Path(__file__).parents[2]
PIECE = 500


def every_kind() -> dict[str, tuple[Maker, Read]]:
    """The core's kinds, and those of the plug-ins that lie beside it."""
    kinds: dict[str, tuple[Maker, Read]] = {kind: (make, read_everything) for kind, make in test_labels.MAKERS.items()}
    for path in sorted(ROOT.glob("plugins/*/tests/sets/test_fuzzed_labels.py")):
        module = import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
        kinds |= {kind: (make, module.read) for kind, make in module.MAKERS.items()}
    return kinds


KINDS = every_kind()


def piece(kind: str, number: int, cases: int = PIECE) -> dict[str, Any]:
    """Spoil a kind ``cases`` times; the line of the log."""
    line: dict[str, Any] = {"kind": kind, "number": number}
    with tempfile.TemporaryDirectory() as folder:
        try:
            make, read = KINDS[kind]
            return line | test_labels.attack_labels(make, Path(folder), cases, number, read)
        except Exception:
            return line | {"fault": traceback.format_exc()}


def next_piece(entries: Sequence[Mapping[str, Any]], cases: int) -> tuple[str, int] | None:
    """The kind and number of the next piece, None once there are ``cases`` cases.

    Kinds take turns; one whose last piece is short has no further mutations.
    """
    last = {entry["kind"]: entry for entry in entries}
    left = [kind for kind in KINDS if kind not in last or "fault" in last[kind] or _cases(last[kind]) == PIECE]
    if sum(map(_cases, entries)) >= cases or not left:
        return None
    kind = min(left, key=lambda one: last[one]["number"] if one in last else 0)
    return kind, last[kind]["number"] + 1 if kind in last else 1


def _cases(entry: Mapping[str, Any]) -> int:
    return int(entry.get("refused", 0) + entry.get("equal", 0))


def table(entries: Iterable[Mapping[str, Any]]) -> str:
    """Cases by kind of labels and outcome, as a Markdown table."""
    counts = {kind: Counter[str]() for kind in KINDS}
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
    began = time.monotonic()
    while (todo := next_piece(read_log(args.out), args.cases)) is not None:
        with open(args.out, "a") as log:
            log.write(json.dumps(piece(*todo)) + "\n")
    entries = read_log(args.out)
    print(f"{table(entries)}\n\n{(time.monotonic() - began) / 60:.0f} minutes")
    return int(any("fault" in entry for entry in entries))


if __name__ == "__main__":
    sys.exit(main())
