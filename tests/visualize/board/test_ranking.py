"""Ranking of a leaderboard: the rows ranked together, their order and differences, and the refused ones."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dinoskip.results.estimates import difference, estimate
from dinoskip.results.records import ImageRecords, RecordedRow, write_recorded_rows
from dinoskip.results.rows import EvalResult
from eval.compare import compare
from visualize.board import Board, BoardSource, make_board, write_board
from visualize.board.ranking import BoardLine

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
    assert second.difference.p == pytest.approx(wanted.mcnemar.p)
    assert second.p == second.difference.with_luck > wanted.mcnemar.p, "one training each"


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


def of_hits(model: str, hits: slice, epoch: int = 3) -> tuple[EvalResult, ImageRecords]:
    values = np.zeros(60, np.uint8)
    values[hits] = 1
    row = replace(ROW, model=model, block="1", value=100 * values.mean(), low=1.0, high=99.0, epoch=epoch)
    return row, ImageRecords(IDS, values)


def board_of(*made: tuple[EvalResult, ImageRecords], **more: object) -> dict[str, BoardLine]:
    source = BoardSource("one", tuple(row for row, _ in made), dict(made), **more)
    return {f"{line.row.model} {line.row.epoch}": line for line in make_board([source]).tables[0].lines}


def with_luck(*pair: tuple[EvalResult, ImageRecords]) -> float:
    return difference(*([estimate(records.values)] for _, records in pair)).with_luck


def test_a_board_says_higher_and_lower_of_one_training_each(tmp_path: Path) -> None:
    found = board_of(of_hits("a", slice(0, 55)), of_hits("b", slice(0, 5)))
    assert (found["a 3"].verdict, found["b 3"].verdict) == ("", "lower, one training each")
    made = dict([of_hits("a", slice(0, 55)), of_hits("b", slice(0, 5))])
    write_board(make_board([BoardSource("one", tuple(made), made)]), tmp_path)
    (first, second) = csv.DictReader((tmp_path / "board.csv").read_text(encoding="utf-8").splitlines())
    assert (first["verdict"], second["verdict"], second["selected"]) == ("", "lower, one training each", "fixed")
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "lower, one training each" in page
    assert "better" not in page.partition("<body>")[2]


def test_a_dead_backbone_is_above_none_on_a_board() -> None:
    made = dict([of_hits("a", slice(0, 55)), of_hits("b", slice(0, 5))])
    (high, low) = made
    gone = replace(high, token_cosine=0.999, complete=1.0, degenerate=1.0)
    found = board_of((gone, made[high]), (low, made[low]))
    assert [line.places for line in found.values()] == [(1, 2), (1, 2)]
    assert found["b 3"].verdict == "undecided"


def test_a_block_chosen_on_the_images_shown_decides_nothing_on_a_board(tmp_path: Path) -> None:
    made = source("one", {"a": {"1": 0.95, "2": 0.9}, "b": {"1": 0.05}}, records=False)
    (first, second) = make_board([made]).tables[0].lines
    assert (first.score.selected, second.score.selected) == ("shown", "fixed")
    assert (first.places, second.places, second.p, second.verdict) == ((1, 2), (1, 2), None, "undecided")
    paired = source("one", {"a": {"1": 0.95, "2": 0.9}, "b": {"1": 0.05}})
    (first, second) = make_board([paired]).tables[0].lines
    assert (first.score.selected, second.verdict) == ("cross-fitted", "lower, one training each")


def test_all_pairs_of_a_board_are_corrected_together() -> None:
    """18 images more, p = 0.03 with the luck of training: decided of two backbones, of three (three pairs) not."""
    first, second, third = of_hits("a", slice(0, 48)), of_hits("b", slice(0, 30)), of_hits("c", slice(0, 39))
    two = board_of(first, second)
    assert two["b 3"].p == pytest.approx(with_luck(first, second))
    assert [line.places for line in two.values()] == [(1, 1), (2, 2)]
    three = board_of(first, second, third)
    assert three["b 3"].p == pytest.approx(3 * with_luck(first, second))
    assert [line.places for line in three.values()] == [(1, 3)] * 3


def test_a_pair_that_is_not_with_the_first_counts_in_the_correction_too() -> None:
    """25 against none, six pairs of four backbones."""
    slices = {"a": slice(0, 45), "b": slice(0, 45), "c": slice(0, 45), "d": slice(0, 20)}
    made = [of_hits(name, hits) for name, hits in slices.items()]
    found = board_of(*made)
    assert found["d 3"].p == pytest.approx(6 * with_luck(made[0], made[3]))
    assert found["d 3"].places == (4, 4)


def test_a_backbone_that_has_not_gained_is_above_none_on_a_board() -> None:
    low = [of_hits("b", slice(0, 10)), of_hits("b", slice(0, 10), epoch=0)]
    learnt = board_of(of_hits("a", slice(0, 50)), of_hits("a", slice(0, 10), epoch=0), *low)
    assert learnt["a 3"].places == (1, 1)
    assert learnt["b 3"].places == (2, 4)
    there_before = board_of(of_hits("a", slice(0, 50)), of_hits("a", slice(0, 50), epoch=0), *low)
    assert there_before["a 3"].places == (1, 4)


@pytest.mark.parametrize("recorded", [True, False])
def test_five_images_decide_nothing_on_a_board_which_says_so(recorded: bool) -> None:
    made = {}
    for model, value in (("a", 1.0), ("b", 0.0)):
        row = replace(ROW, model=model, block="1", value=100 * value, n=5, low=100 * value - 1, high=100 * value + 1)
        made[row] = ImageRecords(IDS[:5], np.full(5, int(value), np.uint8))
    first, second = make_board([BoardSource("one", tuple(made), made if recorded else {})]).tables[0].lines
    assert (first.places, second.places) == ((1, 2), (1, 2))
    assert second.p is None
    assert second.difference is not None
    assert second.how.endswith("5 images are too few (below 6)")


def test_nothing_is_decided_of_a_backbone_whose_rate_is_unresolved(tmp_path: Path) -> None:
    made = [of_hits("a-s1", slice(0, 50)), of_hits("a-s1", slice(0, 20), epoch=0), of_hits("b", slice(0, 18))]
    assert [line.places for line in board_of(*made).values()] == [(1, 1), (2, 3), (2, 3)]
    found = board_of(*made, unresolved={"a": "4 rates were tried, 5 are needed"})
    assert found["a-s1 3"].places == (1, 3)
    assert found["a-s1 3"].how.endswith("; rate unresolved: 4 rates were tried, 5 are needed")
    assert found["b 3"].p is None
    assert found["b 3"].difference is not None
    assert found["a-s1 0"].how == found["a-s1 0"].score.how, "no rate has touched what is not trained"
    source = BoardSource("one", tuple(row for row, _ in made), dict(made), unresolved={"a-s1": "why"})
    page = write_board(make_board([source]), tmp_path)
    assert "rate unresolved: why" in page.read_text(encoding="utf-8")
    assert "rate unresolved: why" in (tmp_path / "board.csv").read_text(encoding="utf-8")
