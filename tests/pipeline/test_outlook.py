"""Status and logs of a study while workers run it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from dinoskip.cli import main
from dinoskip.io.files import write_text
from dinoskip.io.locks import directory_lock
from dinoskip.pipeline.cleaning import RUNNING
from dinoskip.pipeline.cleaning import at_work as a_run
from dinoskip.pipeline.executor import LOGS
from dinoskip.pipeline.outlook import at_work, outlook


def test_processes_that_make_nodes_are_named_and_runs_are_not(tmp_path: Path) -> None:
    assert at_work(tmp_path) == []
    with a_run(tmp_path), directory_lock(tmp_path / RUNNING / "probe/skip/ep1/voc"):
        [one] = at_work(tmp_path)
    assert (one.node, one.pid) == ("probe/skip/ep1/voc", os.getpid())
    assert at_work(tmp_path) == []


def test_what_is_left_is_by_the_rate_of_its_kind() -> None:
    works = {"probe/a": ("probe", 10.0), "probe/b": ("probe", 30.0), "knn/a": ("knn", 1.0)}
    ahead = outlook({"probe/a": 1200.0}, works, ["probe/b", "knn/a"])
    assert (ahead.rates, ahead.seconds, ahead.untimed) == ({"probe": 120.0}, 3600.0, 1)
    assert (ahead.hours_over(0), ahead.hours_over(4)) == (1.0, 0.25)


@pytest.fixture
def study(tmp_path: Path) -> str:
    backbone = {"backbone": "timm:vit_tiny_patch16_224"}
    data = {"mine": {"kind": "folder", "root": str(tmp_path / "photos")}}
    text = {"name": "tiny", "output": str(tmp_path / "runs"), "data": data, "variants": {"model": [backbone]}}
    write_text(tmp_path / "study.yaml", json.dumps(text | {"gallery": {"dataset": "mine", "first": 1}}))
    return str(tmp_path / "study.yaml")


def test_logs_are_listed_shown_and_refused(study: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "runs/tiny" / LOGS / "probe/skip"
    folder.mkdir(parents=True)
    write_text(folder / "voc.log", "".join(f"line {number}\n" for number in range(200)))
    assert main(["logs", study]) == 0
    assert "line 199" in capsys.readouterr().out
    assert main(["logs", study, "probe/skip/voc", "--lines", "2"]) == 0
    assert capsys.readouterr().out.split("\n") == ["line 198", "line 199", ""]
    assert main(["logs", study, "probe/skip/vok"]) == 2
    assert "probe/skip/voc" in capsys.readouterr().err
