"""Notices ahead of a report's numbers: measurements that were not made, and faults in training."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from dinoskip.data.listing import SAMPLED
from dinoskip.io.files import MANIFEST, read_json, read_manifest
from dinoskip.pipeline import stages
from dinoskip.pipeline.artifacts import ACCEPTED, CHANGED_DATA
from dinoskip.results.rows import EvalResult, rows_in
from dinoskip.runtime.console import read_metrics

PREPARED = ("data", "weights", "features")
"""Stages that only others read: what is missing for want of one says so."""
SINGLY = 12
"""So many stages that wait for others are named one by one; more are counted."""


def notices(inputs: Mapping[str, Path], missing: Mapping[str, str] | None = None) -> list[str]:
    """One line each, from the inputs of the report stage by role (``probe/...``, ``pretrain/VARIANT``, ``gallery``).

    ``missing`` are roles that are not there, and why.
    """
    lines = []
    if known := sorted(role for role, path in inputs.items() if _by_sample(path)):
        lines.append(f"images over 1 GiB, known by sizes, times and a sample of their bytes: {', '.join(known)}")
    lines += [f"accepted by name: {line}" for line in _accepted(inputs.values())]
    lines += [f"{role}: {count} broken images are left out" for role, count in _left_out(inputs)]
    lines += _not_run({role: why for role, why in (missing or {}).items() if role.partition("/")[0] not in PREPARED})
    for role, path in sorted(inputs.items()):
        if role.startswith(("pretrain/", "supervise/")):
            lines += [f"{role}: {line}" for line in _of_training(path)]
    return lines


def unmeasured(roles: Collection[str]) -> list[str]:
    """Kinds of measures that none of a report's inputs, there or missing, is of: not asked for."""
    ran = {role.partition("/")[0] for role in roles}
    return [stage.measures for stage in map(stages.load, stages.commands()) if stage.name not in ran]


def _by_sample(output: Path) -> bool:
    """Whether a stage read images that are known by a sample (see ``--verify-data``)."""
    if not (output / MANIFEST).is_file():
        return False
    record = read_manifest(output).info.get("record", {})
    return any(str(mark).startswith(SAMPLED) for mark in record.get("external", {}).values())


def _accepted(outputs: Iterable[Path]) -> list[str]:
    """Return the doubtful verdicts on the data that were accepted when the outputs were made."""
    manifests = [output for output in outputs if (output / MANIFEST).is_file()]
    return sorted({line for output in manifests for line in read_manifest(output).info.get(ACCEPTED, ())})


def _left_out(inputs: Mapping[str, Path]) -> Iterator[tuple[str, int]]:
    """Roles whose rows leave out what is broken, and how much."""
    for role, path in sorted(inputs.items()):
        if count := max((row.left_out or 0 for row in rows_in(path)), default=0):
            yield role, count


def _not_run(missing: Mapping[str, str]) -> Iterator[str]:
    waiting = [role for role, reason in missing.items() if reason.startswith("after ")]
    many = len(waiting) > SINGLY
    for role, reason in sorted(missing.items()):
        if not many or role not in waiting:
            yield f"{role}: not run ({reason})"
    if many:
        kinds = Counter(role.partition("/")[0] for role in waiting)
        counted = ", ".join(f"{kind} ({count})" for kind, count in sorted(kinds.items()))
        yield f"not run, for they need others that were not, {len(waiting)} stages: {counted}"


def _of_training(run: Path) -> Iterator[str]:
    flagged = [row["step"] for row in read_metrics(run / "metrics.jsonl") if row.get("collapse")]
    if flagged:
        yield f"the collapse alarm was raised at step {flagged[0]} ({len(flagged)} rows of metrics.jsonl)"
    skipped = read_metrics(run / "nonfinite.jsonl")
    if skipped:
        yield f"{len(skipped)} steps had gradients that were not finite, and updated nothing (nonfinite.jsonl)"
    changed = run / CHANGED_DATA
    if changed.is_file():
        yield f"files were changed while it trained: {', '.join(read_json(changed))} ({changed.name})"
    bad = run / "bad_images.json"
    if bad.is_file():
        yield f"{len(read_json(bad))} images could not be read and were replaced by others ({bad.name})"


NOTE = "a later epoch is still to be measured"


def note_unfinished(rows: Sequence[EvalResult], stage: str, missing: Iterable[str]) -> list[EvalResult]:
    """The rows of a ``stage``, with :data:`NOTE` if it is ``missing`` at a later epoch, so that no table shows them.

    Without the note, ``probe/NAME/ep0/DATA`` would pass for the result of a network whose ``probe/NAME/ep30/DATA`` has
    not run. Rows of baselines, and rows that have a note, are left as they are.

    Args:
        rows: the rows that the stage wrote.
        stage: the stage's place in the study.
        missing: places of the stages that have not run.
    """
    place, epoch = _without_epoch(stage)
    if not any(place == other and epoch < later for other, later in map(_without_epoch, missing)):
        return list(rows)
    return [row if row.is_baseline or row.note else replace(row, note=NOTE) for row in rows]


def _without_epoch(stage: str) -> tuple[str, int]:
    """``("probe/NAME/*/DATA", 30)`` of ``probe/NAME/ep30/DATA``; an epoch of -1 where a place has none."""
    match = re.search(r"/ep(\d+)(?=/|$)", stage)
    return (stage[: match.start()] + "/*" + stage[match.end() :], int(match[1])) if match else (stage, -1)
