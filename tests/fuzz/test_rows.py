"""Result rows, a value of one changed at a time: read as they stand, or refused with the file, the row and the field."""

from __future__ import annotations

import copy
import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dinoskip.cli import main
from dinoskip.records import RECORDS, ROWS, RecordedRow, write_recorded_rows
from dinoskip.results import EvalResult

VALUES: tuple[Any, ...] = (
    None, True, "x", "", "3", -1, -2, 0, 1.5, 101, 1e308, -1e308, math.inf, math.nan, 10**400, 2**63 - 1, [], {}, [1],
    "²", "9" * 400, "\ud800", "a\nb", "+", "1+2", "baseline: x", "classify", "best on validation", "seed 3", "-s1",
)  # fmt: skip
"""What takes the place of a value: other types, the ends of ranges, and text that has a meaning in some field."""
COMMANDS = ("board", "compare")


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


def changed(rows: list[dict[str, Any]], values: tuple[Any, ...]) -> list[tuple[int, str, Any]]:
    """Rows with one value replaced or one field removed or added; their row, from 1, and field."""
    result = []
    for at, row in enumerate(rows):
        for field in [*row, "deviation", "selected", "precision", "spread"]:
            for value in values:
                other: list[Any] = copy.deepcopy(rows)
                other[at][field] = value
                result.append((at + 1, field, other))
        for field in row:
            other = copy.deepcopy(rows)
            del other[at][field]
            result.append((at + 1, field, other))
    return result


def attack(tmp_path: Path, capsys: pytest.CaptureFixture[str], every: int) -> tuple[int, int]:
    """Run each command on each ``every``-th change; how many were read and refused."""
    whole = tmp_path / "whole"
    cases, counts = changed(write(whole), VALUES)[::every], [0, 0]
    for number, field, rows in cases:
        folder = tmp_path / "rows"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(whole, folder)
        (folder / ROWS).write_text(json.dumps(rows))
        given = repr(rows[number - 1].get(field))[:60]
        refused = set()
        for name in COMMANDS:
            rest = ["--out", str(tmp_path / "board")] if name == "board" else [f"{folder}@block=11"]
            code = main([name, str(folder) if name == "board" else f"{folder}@block=7", *rest])
            lines = capsys.readouterr().err.splitlines()
            assert code in {0, 2, 3}, (name, number, field, given, lines)
            assert code == 0 or all(line.startswith("error: ") for line in lines), (name, number, field, given, lines)
            if code == 3 and ROWS in lines[0]:
                assert f"{folder / ROWS}: row {number}: {field!s}"[:20] in lines[0] or field == "spread"
                assert all(f"row {number}: " in line and field in line for line in lines), (field, given, lines)
                refused.add(name)
        assert refused in (set(), set(COMMANDS)), "every command reads rows alike"
        counts[bool(refused)] += 1
    assert (whole / RECORDS).is_file()
    return counts[0], counts[1]


def test_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    read, refused = attack(tmp_path, capsys, 97)
    assert read > 10
    assert refused > 20


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_rows_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    read, refused = attack(tmp_path, capsys, 1)
    assert min(read, refused) > 1000
