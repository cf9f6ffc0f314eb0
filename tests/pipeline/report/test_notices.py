"""What the report says was not run, or went wrong."""

import json
from pathlib import Path

from dinoskip.pipeline import stages
from dinoskip.pipeline.report.notices import notices, unmeasured


def test_nothing_to_say(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "collapse": false}\n')
    assert notices(dict.fromkeys((*stages.COMMANDS, "pretrain/v"), tmp_path)) == []


def test_what_is_still_to_come_is_not_what_no_data_set_was_named_for(tmp_path: Path) -> None:
    there = dict.fromkeys((name for name in stages.COMMANDS if name != "retrieve"), tmp_path)
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
    absent = [stages.load(name).measures for name in stages.COMMANDS if name not in {"probe", "gallery"}]
    assert {"object discovery", "k-NN classification"} <= set(absent)
    assert unmeasured(["probe/v/ep1/d", "gallery", "pretrain/v"]) == absent


def test_many_that_wait_for_others_are_counted() -> None:
    waiting = {f"{stage}/{v}/ep1/d": f"after weights/{v}/ep1" for stage in ("knn", "probe") for v in "abcdefg"}
    missing = {"pretrain/v": "never run", "gallery": "after knn/a/ep1/d", **waiting}
    assert notices(dict.fromkeys(stages.COMMANDS, Path()), missing) == [
        "pretrain/v: not run (never run)",
        "not run, for they need others that were not, 15 stages: gallery (1), knn (7), probe (7)",
    ]
    few = dict(list(missing.items())[:4])
    assert len(notices(dict.fromkeys(stages.COMMANDS, Path()), few)) == 4
