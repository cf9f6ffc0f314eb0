"""Rows of a network of which a later epoch is still to be measured."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from dinoskip.results import EvalResult

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
