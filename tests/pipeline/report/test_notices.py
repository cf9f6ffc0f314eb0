"""The report's notices on what was not run, or went wrong."""

import json
from pathlib import Path

import pytest

from dinoskip.pipeline import stages
from dinoskip.pipeline.report.notices import NOTE, note_unfinished, notices, unmeasured
from dinoskip.results.rows import EvalResult


def test_nothing_to_say(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "collapse": false}\n')
    assert notices(dict.fromkeys((*stages.commands(), "pretrain/v"), tmp_path)) == []


def test_what_is_still_to_come_is_not_what_no_data_set_was_named_for(tmp_path: Path) -> None:
    there = dict.fromkeys((name for name in stages.commands() if name != "retrieve"), tmp_path)
    missing = {"retrieve/v/ep1/d": "never run", "features/v/ep1/d-val-segmentation": "never run"}
    assert notices(there, missing) == ["retrieve/v/ep1/d: not run (never run)"]


def test_what_is_absent_and_what_went_wrong(tmp_path: Path) -> None:
    rows = [{"step": step, "collapse": step > 20} for step in (10, 20, 30, 40)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "nonfinite.jsonl").write_text('{"step": 7, "loss": "nan", "ids": []}\n')
    (tmp_path / "bad_images.json").write_text('{"a.jpg": "truncated", "b.jpg": "truncated"}')
    assert notices({"probe/v/ep1/d": tmp_path, "gallery": tmp_path, "pretrain/v": tmp_path}) == [
        "pretrain/v: the collapse alarm was raised at step 30 (2 rows of metrics.jsonl)",
        "pretrain/v: 1 steps had gradients that were not finite, and updated nothing (nonfinite.jsonl)",
        "pretrain/v: 2 images could not be read and were replaced by others (bad_images.json)",
    ]


def test_what_was_not_asked_for() -> None:
    absent = [stages.load(name).measures for name in stages.commands() if name not in {"probe", "gallery"}]
    assert {"object discovery", "k-NN classification"} <= set(absent)
    assert unmeasured(["probe/v/ep1/d", "gallery", "pretrain/v"]) == absent


def test_many_that_wait_for_others_are_counted() -> None:
    waiting = {f"{stage}/{v}/ep1/d": f"after weights/{v}/ep1" for stage in ("knn", "probe") for v in "abcdefg"}
    missing = {"pretrain/v": "never run", "gallery": "after knn/a/ep1/d", **waiting}
    assert notices(dict.fromkeys(stages.commands(), Path()), missing) == [
        "pretrain/v: not run (never run)",
        "not run, for they need others that were not, 15 stages: gallery (1), knn (7), probe (7)",
    ]
    few = dict(list(missing.items())[:4])
    assert len(notices(dict.fromkeys(stages.commands(), Path()), few)) == 4


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
