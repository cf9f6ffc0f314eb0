"""Whether a run ended as it may, whether a study is what an undisturbed run makes, and the table of what happened."""

from __future__ import annotations

import hashlib
import json
import re
import signal
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from dinoskip.io.files import MANIFEST, read_manifest, verify_manifest
from dinoskip.pipeline.cleaning import RUNNING
from tests.chaos.disturbances import outputs

INSIDE = ("stages", "records", RUNNING, "verdicts")  # the last: of labels, by the times of their files, too
STOPPED = (-signal.SIGKILL, 75, 130)
BY_SYSTEM = (-signal.SIGTERM, -signal.SIGUSR2)
_OUTPUT = r"(\.partial-)?[0-9a-f]{16}|step-\d{8}"
NOTES = (
    "config.json", "env.json", "status.json", "metrics.jsonl", "changes.jsonl", "bad_images.json", "command.json",
    "provenance.json",
)  # fmt: skip
COLUMNS = ("to the end", "stopped, resumed", "named, resumed", "found by verify", "too late", "starved", "FAULT")
STARVED = 3.0  # times slower than alone on a core: a run that lasts too long there is no fault of it, and is run again


def of_end(code: int, log: str, allowed: Collection[int], named: Collection[str]) -> str:
    """The outcome of one process: ``end``, ``stopped``, ``named``, or a sentence that begins with FAULT.

    ``named`` are texts of which an error must contain one: the damaged file, its output, the disk.
    """
    if code == -signal.SIGINT and 130 in allowed and "Traceback" in log and "dinoskip" not in log:
        return "stopped"  # Python itself was interrupted, before it had come to the program
    if "Traceback (most recent call last)" in log or "Fatal Python error" in log:
        return f"FAULT: a traceback, exit {code}"
    if code in BY_SYSTEM and 75 in allowed and not _at_work(log):
        return "stopped"  # before the program's first line, or after its last
    if code and code not in allowed:
        return f"FAULT: exit {code}"
    if code in STOPPED:
        return "stopped"
    if not code:
        return "end"
    errors = [line for line in log.splitlines() if line.startswith("error: ")]
    if not errors:
        return f"FAULT: exit {code} without an error"
    return (
        "named" if any(text in error for text in named for error in errors) else f"FAULT: names nothing: {errors[-1]}"
    )


def _at_work(log: str) -> bool:
    """Whether the program has said that it is at work, and not yet how it ended."""
    return bool(log) and not re.search("^(error|page|rows): ", log, re.MULTILINE)


def names_of(path: Path, study: Path) -> list[str]:
    """Texts that name a damaged file: itself, or the directories of the output in which it lies."""
    if not path.is_relative_to(study):
        return [str(path), path.name]
    inside = path.relative_to(study).parts
    cut = next((i for i, part in enumerate(inside) if re.fullmatch(_OUTPUT, part)), None)
    output = str(study.joinpath(*inside[: cut + 1])) if cut is not None else str(study)
    return [str(path), output]


def output_of(path: Path, study: Path) -> Path:
    """Return what to remove if ``path`` is damaged: its output or checkpoint, the file itself, a whole run or store."""
    output = Path(names_of(path, study)[1])
    whole = (study / "checkpoints").is_dir() or (study / MANIFEST).is_file()
    return path if output == study and not whole else output


def contents(study: Path) -> dict[str, str]:
    """``stages/NODE/KEY`` to hash of what is published, and the sha256 of every file that is shown: rows, pages."""
    found = {}
    for path in outputs(study):
        manifest = read_manifest(path)
        if "node" in manifest.info:
            found[f"stages/{manifest.info['node']}/{path.name}"] = manifest.hash
    for file in sorted(study.rglob("*")):
        if file.is_file() and file.relative_to(study).parts[0] not in (*INSIDE, *NOTES):
            found[file.relative_to(study).as_posix()] = hashlib.sha256(file.read_bytes()).hexdigest()
    return found


def problems(study: Path) -> list[str]:
    """Return the problems that ``dinoskip verify`` names in a study's outputs."""
    return [problem for path in outputs(study) for problem in verify_manifest(path)]


def differences(expected: Mapping[str, str], study: Path) -> list[str]:
    """Names of what differs from an undisturbed run's :func:`contents`.

    Not the further outputs of a node: a disturbed run may have read other data, one photograph fewer.
    """
    found = contents(study)
    nodes = {str(Path(name).parent) for name in expected}
    others = {name for name in found.keys() - expected.keys() if name.startswith("stages/")}
    names = expected.keys() | found.keys() - {name for name in others if str(Path(name).parent) in nodes}
    return sorted(name for name in names if expected.get(name) != found.get(name))


# --- the table ---------------------------------------------------------------------------------------


def read_log(path: Path) -> list[dict[str, Any]]:
    """The lines of a log; one that a killed piece left unfinished is passed over."""
    entries = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            entries.append(json.loads(line))
        except ValueError:
            continue
    return entries


def column_of(event: Mapping[str, Any], settled: Mapping[str, Any] | None) -> str:
    """The column of an event, by its own outcome and that of the undisturbed run after it."""
    outcome = event["outcome"]
    if outcome.startswith("FAULT") or (settled is not None and settled["outcome"].startswith("FAULT")):
        return "starved" if event.get("slow", 1.0) >= STARVED and "still running" in outcome else "FAULT"
    if event["did"] is None:
        return "too late"
    if outcome == "stopped":
        return "stopped, resumed"
    if outcome == "named":
        return "named, resumed"
    return "found by verify" if settled is not None and settled["found"] else "to the end"


def table(entries: Iterable[Mapping[str, Any]]) -> str:
    """Events by kind and outcome over all pieces of a log, as a Markdown table, and a line of sums."""
    listed = list(entries)
    settled = {tuple(key): entry for entry in listed if entry["entry"] == "settled" for key in entry["events"]}
    counts: dict[str, Counter[str]] = {}
    for event in listed:
        if event["entry"] == "event":
            column = column_of(event, settled.get((event["piece"], event["number"])))
            for kind in event["kinds"]:
                counts.setdefault(kind["name"], Counter())[column if kind["did"] else "too late"] += 1
    lines = [f"| disturbance | events | {' | '.join(COLUMNS)} |", f"|---|{'---:|' * (len(COLUMNS) + 1)}"]
    for name, row in counts.items():
        lines.append(f"| {name} | {row.total()} | {' | '.join(str(row[column]) for column in COLUMNS)} |")
    total = sum(counts.values(), Counter())
    lines.append(f"| all | {total.total()} | {' | '.join(str(total[column]) for column in COLUMNS)} |")
    lasted = {entry["piece"]: entry["seconds"] for entry in listed}
    hours = sum(lasted.values()) / 3600
    runs = sum(entry["entry"] == "event" for entry in listed)
    equal = sum(entry["entry"] == "settled" and entry["outcome"] == "equal" for entry in listed)
    slow = [entry["slow"] for entry in listed if "slow" in entry]
    beside = f" Others used the cores: a run was {median(slow):.1f} times slower than alone (median)." if slow else ""
    lines += [
        "",
        f"{hours:.2f} hours, {runs} disturbed runs, {equal} times compared with the undisturbed run and equal.{beside}",
    ]
    return "\n".join(lines)


# --- logs that are kept ------------------------------------------------------------------------------

BEGIN, END = "<!-- python -m tests.chaos --keep -->\n", "<!-- end -->\n"


def keep(out: Path, logs: Path) -> None:
    """Copy what pieces logged below ``out``, if they disturbed a run, to ``logs``, a file a piece: its name."""
    for path in sorted(out.glob("*/log.jsonl")):
        entries = read_log(path)
        for piece in {entry["piece"] for entry in entries if entry["entry"] == "event"}:
            lines = [json.dumps(other) + "\n" for other in entries if other["piece"] == piece]
            logs.mkdir(exist_ok=True)
            (logs / f"{piece.replace(':', '')}.jsonl").write_text("".join(lines))


def kept(logs: Path) -> list[dict[str, Any]]:
    """The entries of all logs that are kept."""
    return [entry for path in sorted(logs.glob("*.jsonl")) for entry in read_log(path)]


def with_table(page: str, entries: Iterable[Mapping[str, Any]]) -> str:
    """A page with the table of ``entries`` in the place of the one that it has between its marks."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{table(entries)}\n\n{END}{rest.partition(END)[2]}"
