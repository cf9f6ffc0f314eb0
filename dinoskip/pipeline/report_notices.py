"""What a report's reader should know before its numbers: what was not measured, and what went wrong in training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from dinoskip.console import read_metrics
from dinoskip.files import read_json
from dinoskip.pipeline import stages

PREPARED = ("data", "weights", "features")
"""Stages that only others read: what is missing for want of one says so."""


def notices(inputs: Mapping[str, Path], missing: Mapping[str, str] | None = None) -> list[str]:
    """One line each, from the inputs of the report stage by role (``probe/...``, ``pretrain/VARIANT``, ``gallery``).

    ``missing`` are roles that are not there, and why.
    """
    ran = {role.partition("/")[0] for role in [*inputs, *(missing or {})]}
    absent = [stage.measures for stage in map(stages.load, stages.COMMANDS) if stage.name not in ran]
    lines = [f"not asked for: {', '.join(absent)}"] if absent else []
    lines += [
        f"{role}: not run ({reason})"
        for role, reason in sorted((missing or {}).items())
        if role.partition("/")[0] not in PREPARED
    ]
    for role, path in sorted(inputs.items()):
        if role.startswith(("pretrain/", "supervise/")):
            lines += [f"{role}: {line}" for line in _of_training(path)]
    return lines


def _of_training(run: Path) -> Iterator[str]:
    flagged = [row["step"] for row in read_metrics(run / "metrics.jsonl") if row.get("collapse")]
    if flagged:
        yield f"the collapse alarm was raised at step {flagged[0]} ({len(flagged)} rows of metrics.jsonl)"
    skipped = read_metrics(run / "nonfinite.jsonl")
    if skipped:
        yield f"{len(skipped)} steps had gradients that were not finite, and updated nothing (nonfinite.jsonl)"
    bad = run / "bad_images.json"
    if bad.is_file():
        yield f"{len(read_json(bad))} images could not be read and were replaced by others ({bad.name})"
