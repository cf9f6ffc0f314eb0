"""Rows as JSON and CSV."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import fields, replace
from pathlib import Path

import pytest

from dinoskip.errors import DataError
from dinoskip.files import write_json
from dinoskip.results import EvalResult, read_rows, rows_csv, write_rows

ROW = EvalResult("mIoU", 40.0, "probe", "3+6", "voc2012", "val", 10, model="skip", low=38.04, high=43.96)


def test_rows_come_back_from_json_and_old_ones_have_no_interval(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.json", [ROW, replace(ROW, low=None, high=None)])
    assert read_rows(tmp_path / "rows.json") == [ROW, replace(ROW, low=None, high=None)]
    old = {name: value for name, value in ROW.plain().items() if name not in {"low", "high"}}
    write_json(tmp_path / "old.json", [old])
    assert read_rows(tmp_path / "old.json")[0].interval == ""
    write_json(tmp_path / "new.json", [{**old, "spread": 1}])
    with pytest.raises(DataError, match="not result rows"):
        read_rows(tmp_path / "new.json")


def test_numbers_that_are_not_finite_become_null(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.json", [replace(ROW, value=math.nan, low=math.nan, high=math.nan)])
    (back,) = read_rows(tmp_path / "rows.json")
    assert math.isnan(back.value)
    assert (back.low, back.high) == (None, None)


def test_interval_reads_as_one_would_write_it() -> None:
    assert ROW.interval == "38.0-44.0"
    assert replace(ROW, low=None).interval == ""


def test_csv_has_every_field_and_the_variant_if_asked() -> None:
    names = [field.name for field in fields(EvalResult)]
    rows = [ROW, replace(ROW, value=math.nan, low=None, high=None, dataset="=1+1")]
    plain = list(csv.DictReader(io.StringIO(rows_csv(rows))))
    assert list(plain[0]) == names
    assert (plain[0]["low"], plain[1]["low"], plain[1]["value"], plain[1]["dataset"]) == ("38.04", "", "", "'=1+1")
    named = list(csv.DictReader(io.StringIO(rows_csv(rows, ["a", "-b"]))))
    assert [row["variant"] for row in named] == ["a", "'-b"]
    assert list(named[0]) == ["variant", *names]


def test_baselines_of_any_model_are_the_same_row() -> None:
    other = replace(ROW, model="skipless", block="4", depth=12, epoch=9, weights="abc", facet="key", protocol="x")
    assert ROW.baseline("full image", 5.0) == other.baseline("full image", 5.0)
