"""Rows of a folder that count: those of a study's current outputs, and every rows.json elsewhere."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dinoskip.errors import ConfigError, DataError
from dinoskip.results.records import RecordedRow, write_recorded_rows
from dinoskip.results.rows import EvalResult, write_rows
from visualize.board import read_sources

ROW = EvalResult("CorLoc", 50.0, "tokencut", "1", "voc", "val", 2, "net")


def study(root: Path) -> Path:
    """A study with an output of now and one of before, a gallery, and the copy of all rows beside them."""
    for node, key, value in (("tokencut/net/ep0/voc", "a" * 16, 50.0), ("tokencut/net/ep0/voc", "b" * 16, 10.0)):
        folder = root / "stages" / node / key
        folder.mkdir(parents=True)
        row = RecordedRow(replace(ROW, value=value), np.array([1, 0]))
        write_recorded_rows(folder, ["x", "y"], [row])
    for node, key in (("tokencut/net/ep0/voc", "a" * 64), ("gallery", "c" * 64)):
        record = root / "records" / f"{node}.json"
        record.parent.mkdir(parents=True, exist_ok=True)
        record.write_text(json.dumps({"key": key}))
    page = root / "stages" / "gallery" / ("c" * 16) / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text("")
    write_rows(root / "rows.json", [ROW])
    return root


def test_of_a_study_the_current_outputs_count(tmp_path: Path) -> None:
    (source,) = read_sources([str(study(tmp_path / "paper"))])
    assert (source.name, source.rows) == ("paper", (ROW,))
    assert source.records[ROW].values.tolist() == [1, 0]
    assert source.gallery is not None
    assert source.gallery.parent.name == "c" * 16


def test_names_are_given_or_the_folders_own(tmp_path: Path) -> None:
    one = study(tmp_path / "a" / "runs")
    other = tmp_path / "b" / "runs"
    other.mkdir(parents=True)
    write_rows(other / "rows.json", [replace(ROW, model="other")])
    sources = read_sources([str(one), str(other / "rows.json"), f"machine 2={tmp_path / 'b'}"])
    assert [source.name for source in sources] == ["runs", "runs (2)", "machine 2"]
    assert [source.rows[0].model for source in sources] == ["net", "other", "other"]
    (both,) = read_sources([str(tmp_path)])
    assert {row.model for row in both.rows} == {"net", "other"}


def test_what_has_no_rows_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds no rows\.json"):
        read_sources([str(tmp_path)])
    for text in ('[{"metric": 1}]', '[{"unknown": 1}]', '[{"value": 1}]', "[7]"):
        (tmp_path / "rows.json").write_text(text)
        with pytest.raises(DataError, match=r"rows\.json"):
            read_sources([str(tmp_path)])


def test_one_row_of_different_images_is_refused(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        write_recorded_rows(tmp_path / name, [name, "y"], [RecordedRow(ROW, np.array([1, 0]))])
    with pytest.raises(DataError, match="is of other images elsewhere"):
        read_sources([str(tmp_path)])


def test_unresolved_rates_are_those_of_the_current_sweeps(tmp_path: Path) -> None:
    root = study(tmp_path / "paper")
    for name, key, why in (("net", "a" * 16, "now"), ("net", "b" * 16, "before"), ("other", "c" * 16, "")):
        folder = root / "stages" / "sweep" / name / key
        folder.mkdir(parents=True)
        (folder / "sweep.json").write_text(json.dumps({"unresolved": why}))
    for name, key in (("net", "a" * 64), ("other", "c" * 64)):
        (root / "records" / "sweep").mkdir(exist_ok=True)
        (root / "records" / "sweep" / f"{name}.json").write_text(json.dumps({"key": key}))
    (source,) = read_sources([str(root)])
    assert source.unresolved == {"net": "now"}
    assert [source.rate_of(replace(ROW, epoch=epoch)) for epoch in (3, 0)] == ["now", ""]
