"""A rehearsal says which cells of a published table stay empty."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dinoskip.cli import main
from tests.pipeline.test_rehearse import config

__all__ = ["config"]


def test_a_study_without_its_data_runs_to_its_page_and_says_what_stays_empty(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["rehearse", str(config), "--out", str(tmp_path / "out"), "--device", "cpu", "-q", "--json"]
    assert main([*command, "report.compare=conditioned.table6"]) == 2, "no network of the study stands in that table"
    done = json.loads(capsys.readouterr().out)
    assert done["empty"] == ["conditioned.table6: no cell is filled"]
    assert done["filled"]["pictures"] > 0
    page = Path(done["page"])
    assert page.is_file()
    assert json.loads((page.parent / "rehearsal.json").read_text()) == done
