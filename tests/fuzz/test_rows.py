"""Result rows, a value of one changed at a time: read as they stand, or refused with file, row and field."""

from __future__ import annotations

import copy
import json
import math
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dinoskip.cli import main
from dinoskip.errors import DataError
from dinoskip.results.records import ROWS, RecordedRow, write_recorded_rows
from dinoskip.results.rows import EvalResult, read_rows
from tests.helpers.mutations import refused

VALUES: tuple[Any, ...] = (
    None, True, "x", "", "3", -1, -2, 0, 1.5, 101, 1e308, -1e308, math.inf, math.nan, 10**400, 2**63 - 1, [], {}, [1],
    "²", "9" * 400, "\ud800", "a\nb", "+", "1+2", "baseline: x", "classify", "best on validation", "seed 3", "-s1",
)  # fmt: skip
"""What takes the place of a value: other types, the ends of ranges, and text that has a meaning in some field."""
Change = tuple[int, str, list[dict[str, Any]]]
"""A row, from 1, its field, and the rows with another value there."""


def write(folder: Path) -> list[dict[str, Any]]:
    """Rows of a probe, of a classifier and of a baseline, with records, as evaluations write them."""
    hits = np.array([0, 1] * 3, dtype=np.uint8)
    probe = EvalResult(
        "accuracy", 50.0, "knn", "7", "voc2012", "val", 6, model="skip", depth=12, epoch=3, low=30.5, high=69.0,
        token_cosine=0.2, weights="abc", version="0.1", facet="cls", norm="none", classes=2,
    )  # fmt: skip
    cut = EvalResult(
        "CorLoc", 50.0, "tokencut", "11", "voc2012", "trainval", 6, model="skip", depth=12, degenerate=0.5, complete=0,
        ambiguous=0.1, left_out=1,
    )  # fmt: skip
    top1 = EvalResult("top1", 40.0, "classify", "12", "imagenet", "val", 10, model="skip-s1", epoch=90)
    rows = [probe, cut, probe.baseline("majority class", 50.0), top1]
    folder.mkdir()
    write_recorded_rows(folder, tuple("abcdef"), [RecordedRow(row, hits) for row in rows[:3]] + [RecordedRow(top1)])
    entries: list[dict[str, Any]] = json.loads((folder / ROWS).read_text())
    return entries


def changed(rows: list[dict[str, Any]], values: tuple[Any, ...]) -> list[Change]:
    """Rows with one value replaced or one field removed or added; their row, from 1, and field."""
    result: list[Change] = []
    for at, row in enumerate(rows):
        for field in [*row, "deviation", "selected", "precision", "spread"]:
            for value in values:
                other = copy.deepcopy(rows)
                other[at][field] = value
                result.append((at + 1, field, other))
        for field in row:
            other = copy.deepcopy(rows)
            del other[at][field]
            result.append((at + 1, field, other))
    return result


def read_or_refused(folder: Path, cases: list[Change]) -> tuple[list[Change], int]:
    """The changes after which rows are read; how many are refused."""
    read, path = [], folder / ROWS
    for number, field, rows in cases:
        path.write_text(json.dumps(rows))
        if refused(partial(read_rows, path), f"{path}: row {number}: "):
            continue
        read.append((number, field, rows))
    return read, len(cases) - len(read)


def shown_or_refused(whole: Path, tmp_path: Path, cases: list[Change], capsys: pytest.CaptureFixture[str]) -> None:
    """Each command on rows that can be read: it ends well or in one of our errors."""
    for number, field, rows in cases:
        folder = tmp_path / "rows"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(whole, folder)
        (folder / ROWS).write_text(json.dumps(rows))
        for command in (
            ["board", str(folder), "--out", str(tmp_path / "board")],
            ["compare", f"{folder}@block=7", f"{folder}@block=11"],
        ):
            code, lines = main(command), capsys.readouterr().err.splitlines()
            about = command[0], number, field, repr(rows[number - 1].get(field))[:60], lines
            assert code in {0, 2, 3}, about
            assert code == 0 or all(line.startswith("error: ") for line in lines), about


def test_every_change_is_read_or_refused_by_row_and_field(tmp_path: Path) -> None:
    cases = changed(write(tmp_path / "whole"), VALUES)
    read, count = read_or_refused(tmp_path / "whole", cases[::6])
    assert min(len(read), count) > 150


def test_the_command_line_names_every_wrong_value(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = write(tmp_path / "whole")
    rows[1] |= {"n": "text", "low": [1]}
    rows[3]["selected"] = 3
    path = tmp_path / "whole" / ROWS
    path.write_text(json.dumps(rows))
    for command in (["board", str(path.parent), "--out", str(tmp_path / "b")], ["compare", str(path), str(path)]):
        assert main(command) == 3
        lines = capsys.readouterr().err.splitlines()
        assert [line.split(": ")[1:4] for line in lines] == [
            [str(path), "row 2", "n"], [str(path), "row 2", "low"], [str(path), "row 4", "selected"],
        ]  # fmt: skip
    path.write_text(json.dumps([{**row, "n": -1} for row in rows] * 10))
    assert main(["compare", str(path), str(path)]) == 3
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 11
    assert "50 more" in lines[-1]


@pytest.mark.parametrize(
    "content", ["{}", "3", "null", '"rows"', "[3]", "[null]", "[[]]", "[{}]", '{"0": {}}', "[", ""]
)
def test_what_is_no_list_of_rows(content: str, tmp_path: Path) -> None:
    path = tmp_path / ROWS
    path.write_text(content)
    with pytest.raises(DataError) as caught:
        read_rows(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_what_is_read_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = tmp_path / "whole"
    (tmp_path / "read").mkdir()
    read, _ = read_or_refused(tmp_path / "read", changed(write(whole), VALUES)[::200])
    shown_or_refused(whole, tmp_path, read, capsys)
    assert read


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_all_that_is_read_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = tmp_path / "whole"
    (tmp_path / "read").mkdir()
    read, count = read_or_refused(tmp_path / "read", changed(write(whole), VALUES))
    assert min(len(read), count) > 1000
    shown_or_refused(whole, tmp_path, read, capsys)
