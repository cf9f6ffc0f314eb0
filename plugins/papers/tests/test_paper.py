"""The command that lays out the whole paper reads studies' folders, finished or not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dinoskip.cli import main
from dinoskip.pipeline.study import load_study
from tests.helpers.shipped import write_shrunk


def test_a_study_of_another_kind_fills_no_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_shrunk("eval/own_masks.yaml", tmp_path)
    monkeypatch.chdir(path.parent)
    assert main(["run", path.name, "output=runs", "--device", "cpu", "-q"]) == 0
    folder = load_study(path.name, ["output=runs"])[0].results
    capsys.readouterr()
    assert main(["paper", str(folder), "--out", "page", "--json"]) == 0
    cells = json.loads(capsys.readouterr().out)["cells"]
    assert cells["paper.table2"][0] == 0 < cells["paper.table2"][1]
    assert str(folder.resolve()) in Path("page/index.html").read_text()
    assert main(["paper", str(folder), "--out", str(folder)]) == 2
    assert "the folder of a study" in capsys.readouterr().err
    assert main(["paper", "page", "--out", "another"]) == 2
    assert "holds no report/" in capsys.readouterr().err
    assert not Path("another").exists()
