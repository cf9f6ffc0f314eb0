"""Rows of a network before its last epoch, which is still to be measured."""

from __future__ import annotations

import pytest

from dinoskip.pipeline.report.unfinished import NOTE, note_unfinished
from dinoskip.results import EvalResult


@pytest.mark.parametrize(
    ("stage", "missing", "noted"),
    [
        ("probe/skip-s0/ep0/scenes", ["probe/skip-s0/ep30/scenes"], True),
        ("probe/skip-s0/ep10/scenes", ["gallery", "probe/skip-s0/ep30/scenes"], True),
        ("video/ep7/ep0", ["video/ep7/ep3"], False),  # a network named like an epoch
        ("probe/skip-s0/ep30/scenes", ["probe/skip-s0/ep0/scenes"], False),
        ("probe/skip-s0/ep0/scenes", ["probe/skip-s1/ep30/scenes"], False),
        ("probe/skip-s0/ep0/scenes", ["probe/skip-s0/ep30/voc2012"], False),
        ("probe/skip-s0/ep0/scenes", ["knn/skip-s0/ep30/scenes"], False),
        ("probe/timm/scenes", ["probe/skip-s0/ep30/scenes"], False),
        ("probe/skip-s0/ep0/scenes", [], False),
    ],
)
def test_rows_before_a_missing_epoch_are_noted(stage: str, missing: list[str], noted: bool) -> None:
    rows = [EvalResult("mIoU", value, "probe", "1", "scenes", "val", 9, "skip-s0") for value in (20.0, 21.0)]
    kept = note_unfinished(rows, stage, missing)
    assert [one.note for one in kept] == [NOTE if noted else ""] * 2
    assert [one.value for one in kept] == [20.0, 21.0]


def test_baselines_and_rows_with_a_note_stay_as_they_are() -> None:
    floor = EvalResult("mIoU", 3.0, "probe", "", "scenes", "val", 9, "baseline: majority class")
    of_a_seed = EvalResult("mIoU", 20.0, "probe", "1", "scenes", "val", 9, "skip-s0", note="seed 1")
    rows = [floor, of_a_seed]
    assert note_unfinished(rows, "probe/skip-s0/ep0/scenes", ["probe/skip-s0/ep30/scenes"]) == rows
