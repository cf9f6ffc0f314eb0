"""What a board ranks together, in which order, with which differences, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dinoskip.records import ImageRecords, RecordedRow, write_recorded_rows
from dinoskip.results import EvalResult
from eval.compare import compare
from visualize.board import Board, BoardSource, make_board

IDS = tuple(f"image{i}" for i in range(60))
ROW = EvalResult(
    "CorLoc", 0.0, "tokencut", "", "voc", "val", 60, facet="key", norm="none", protocol="p", resolution="native"
)


def source(name: str, rates: dict[str, dict[str, float]], records: bool = True, **more: object) -> BoardSource:
    """Backbones with a hit rate at every block, of the same images."""
    made: dict[EvalResult, ImageRecords] = {}
    for model, blocks in rates.items():
        for block, rate in blocks.items():
            hits = np.random.default_rng(sum(map(ord, model + block))).random(60) < rate
            row = replace(ROW, model=model, block=block, value=100 * hits.mean(), low=1.0, high=99.0, **more)
            made[row] = ImageRecords(IDS, hits.astype(np.uint8))
    return BoardSource(name, tuple(made), made if records else {})


def lines(board: Board, number: int = 0) -> list[tuple[int | None, str, str]]:
    return [(line.rank, line.source, line.row.model) for line in board.tables[number].lines]


def test_backbones_of_several_studies_are_ranked_in_one_table() -> None:
    one = source("one", {"good": {"1": 0.9, "2": 0.85}, "bad": {"1": 0.1}})
    other = source("two", {"good": {"1": 0.5}})
    board = make_board([one, other])
    assert lines(board) == [(1, "one", "good"), (2, "two", "good"), (3, "one", "bad")]
    assert not board.refused
    (table,) = board.tables
    assert table.blocks == ["1", "2"]
    assert table.setting["protocol"] == "p"
    first, second, third = table.lines
    assert first.difference is None
    assert second.difference is not None
    assert second.difference.paired
    assert third.p is not None
    assert third.p < 0.01
    assert third.difference is not None
    assert third.p >= third.difference.p  # adjusted


def test_the_difference_is_that_of_compare(tmp_path: Path) -> None:
    one, other = source("one", {"a": {"3": 0.7}}), source("two", {"b": {"3": 0.5}})
    for part in (one, other):
        (tmp_path / part.name).mkdir()
        recorded = [RecordedRow(row, records.values) for row, records in part.records.items()]
        write_recorded_rows(tmp_path / part.name, IDS, recorded)
    first, second = make_board([one, other]).tables[0].lines
    wanted = compare(str(tmp_path / second.source), str(tmp_path / first.source))
    assert second.difference is not None
    assert second.difference.value == pytest.approx(wanted.difference.value)
    assert (second.difference.low, second.difference.high) == pytest.approx(
        (wanted.difference.low, wanted.difference.high), abs=2.5
    )  # other draws: images stand in another order
    assert wanted.mcnemar is not None
    assert second.p == pytest.approx(wanted.mcnemar.p)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("protocol", "q", "protocol: p and q"),
        ("norm", "final", "norm: none and final"),
        ("facet", "out", "facet: key and out"),
        ("resolution", "448 square", "resolution: native and 448 square"),
        ("n", 50, "n: 60 and 50"),
        ("classes", 21, "classes: none and 21"),
    ],
)
def test_other_settings_are_not_ranked_together_and_the_key_is_named(key: str, value: object, said: str) -> None:
    board = make_board(
        [source("one", {"a": {"1": 0.5}}), source("two", {"b": {"1": 0.6}}, records=False, **{key: value})]
    )
    assert [lines(board, number) for number in range(2)] == [[(1, "one", "a")], [(1, "two", "b")]]
    assert [pair.text for pair in board.refused] == [said]


def test_other_data_are_other_measures_and_not_refused() -> None:
    board = make_board([source("one", {"a": {"1": 0.5}}), source("two", {"a": {"1": 0.6}}, split="test")])
    assert len(board.tables) == 2
    assert not board.refused


def test_without_records_differences_are_unpaired_and_baselines_come_last() -> None:
    one = source("one", {"a": {"1": 0.9}, "b": {"1": 0.2}}, records=False)
    floor = one.rows[0].baseline("centre box", 99.0)
    board = make_board([BoardSource("one", (*one.rows, floor), {}), BoardSource("two", (*one.rows[:1], floor), {})])
    assert lines(board) == [
        (1, "one", "a"), (1, "two", "a"), (3, "one", "b"), (None, "", "baseline: centre box")
    ]  # fmt: skip
    difference = board.tables[0].lines[2].difference
    assert difference is not None
    assert not difference.paired
