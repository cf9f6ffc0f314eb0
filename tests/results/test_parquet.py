from __future__ import annotations

import io
import math
from dataclasses import fields, replace
from pathlib import Path

import pytest

from dinoskip.pipeline.report.results_folder import PARQUET, publish_results
from dinoskip.results import parquet
from dinoskip.results.parquet import column_types, rows_parquet
from dinoskip.results.rows import EvalResult

ROW = EvalResult("mIoU", 41.5, "probe", "9", "voc2012", "val", 1449, depth=12, epoch=300, low=40.0)


def test_types_of_columns() -> None:
    types = column_types()
    assert list(types) == [field.name for field in fields(EvalResult)]
    assert {name: types[name] for name in ("value", "low", "n", "left_out", "selected", "block")} == {
        "value": float, "low": float, "n": int, "left_out": int, "selected": str, "block": str,
    }  # fmt: skip


def test_rows_come_back_as_they_were() -> None:
    table = pytest.importorskip("pyarrow.parquet")
    written = rows_parquet([ROW, replace(ROW, value=math.nan)])
    assert written is not None
    assert table.read_table(io.BytesIO(written)).to_pylist() == [ROW.plain(), ROW.plain() | {"value": None}]


def test_a_table_of_other_rows_does_not_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow")
    publish_results(tmp_path, [ROW], {})
    assert (tmp_path / PARQUET).is_file()
    monkeypatch.setattr(parquet, "find_spec", lambda name: None)
    publish_results(tmp_path, [replace(ROW, value=1.0)], {})
    assert not (tmp_path / PARQUET).exists()
    assert (tmp_path / "rows.csv").is_file()
