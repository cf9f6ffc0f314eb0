"""The report's first screen: networks × measures, and the sentence above them."""

from __future__ import annotations

from dataclasses import replace

from tests.visualize.report.test_answer import answered, corloc, studied_with
from visualize.report.answer import SAME_WEIGHTS, answers, unpaired, verdict
from visualize.report.overview import (
    BASELINE,
    MOST_COLUMNS,
    NOT_SEPARATING,
    grid_of,
    overview_tables,
    overviews,
)
from visualize.rows import DEFAULT, INITIALISED, SKIP


def of_three(*, weights=""):
    rates = {"s": 0.6, "o": 0.9, "d": 0.2}
    roles = {"s": SKIP, "o": INITIALISED, "d": DEFAULT}
    return answered(*((n, roles[n], "soap", [corloc(n, rate, weights=weights)]) for n, rate in rates.items()))


def test_each_network_has_a_line_and_each_verdict_a_word_and_a_number():
    [found] = overviews(of_three(), [])
    [measure] = found.measures
    assert measure.startswith("CorLoc, voc val (")
    higher, lower = "higher, one training each", "lower, one training each"
    cells = {name: cell for name, (cell,) in found.lines}
    assert {name: (cell.kind, cell.value, cell.at, cell.word) for name, cell in cells.items()} == {
        "s": ("value", "60.0", "block 1", ""),
        "o": ("higher", "90.0", "block 1", higher),
        "d": ("lower", "20.0", "block 1", lower),
    }
    assert cells["o"].difference.startswith("+30.0 [")
    [table] = overview_tables([grid_of(found)])
    assert [text for text, _ in table.head[0]] == ["", "s", "o", "d"]
    [[label, *texts]] = table.rows
    assert label.startswith(measure)
    assert texts[:2] == ["60.0 (block 1)", f"90.0 (block 1); {cells['o'].difference}, {higher}"]
    assert verdict(of_three()) == (
        f"Compared with “s”: “o” is {higher}, on 1 of 1 metrics; “d” is {lower}, on 1 of 1 metrics."
    )


def test_a_measure_that_separates_nothing_says_so_and_stands_last():
    pairs = of_three()
    silent = {pairs[0].lines[0].benchmark}
    [found] = overviews(pairs, silent)
    assert {cell.word for name, (cell,) in found.lines if name != "s"} == {NOT_SEPARATING}


def test_two_networks_of_the_same_weights_are_called_that():
    row, record = corloc("s", 0.6, weights="abc")
    same = replace(row, model="o")
    pairs = answered(("s", SKIP, "soap", [(row, record)]), ("o", INITIALISED, "soap", [(same, record)]))
    assert verdict(pairs) == f"“o” and “s” have {SAME_WEIGHTS}."
    [found] = overviews(pairs, [])
    assert dict(found.lines)["o"][0].word == SAME_WEIGHTS
    other = replace(row, model="o", weights="other")
    pairs = answered(("s", SKIP, "soap", [(row, record)]), ("o", INITIALISED, "soap", [(other, record)]))
    assert verdict(pairs).startswith("No ranking of “o” and “s” (no difference is significant): ")


def test_the_last_line_is_the_best_baseline():
    pairs = of_three()
    rule = replace(corloc("x", 0.3)[0], model="baseline: centre box")
    pairs = [replace(pair, lines=[replace(line, trivial=rule) for line in pair.lines]) for pair in pairs]
    [found] = overviews(pairs, [])
    name, (cell,) = found.lines[-1]
    assert (name, cell.kind, cell.value, cell.at) == (BASELINE, "floor", "30.0", "centre box")
    below = dict(found.lines)["d"][0]
    assert below.at == "block 1, no better than the baseline"


def test_networks_stand_beside_each_other_and_many_are_lines():
    [few] = overviews(of_three(), [])
    assert [head for head, _ in grid_of(few).heads] == ["s", "o", "d"]
    assert [head for (head, _), _ in grid_of(few).lines] == list(few.measures)
    lines = tuple((f"n{number}", few.lines[0][1]) for number in range(MOST_COLUMNS + 1))
    many = grid_of(replace(few, lines=lines))
    assert [head for head, _ in many.heads] == list(few.measures)
    assert [head for (head, _), _ in many.lines] == [name for name, _ in lines]


def test_networks_that_are_compared_with_none_have_a_line_with_their_scores():
    runs = [("s", SKIP, "soap", 0.6), ("o", INITIALISED, "soap", 0.9), ("given", "", "", 0.7)]
    studied, scores = studied_with(*((name, role, optim, [corloc(name, rate)]) for name, role, optim, rate in runs))
    [other] = unpaired(studied, scores)
    assert (other.first, other.second) == ("given", "")
    [found] = overviews(answers(studied, scores), [], [other])
    cells = {name: cell for name, (cell,) in found.lines}
    assert list(cells) == ["s", "o", "given"]
    assert (cells["given"].value, cells["given"].difference, cells["given"].word) == ("70.0", "", "not compared")
    assert unpaired(studied[2:], scores) == [], "a single network has its own page"
    elsewhere = replace(
        other, lines=[replace(one, benchmark=replace(one.benchmark, dataset="x")) for one in other.lines]
    )
    [found] = overviews(answers(studied, scores), [], [elsewhere])
    assert [measure.partition(" (")[0] for measure in found.measures] == ["CorLoc, voc val", "CorLoc, x val"]
    assert [cell.value for cell in dict(found.lines)["given"]] == ["", "70.0"]
    [found] = overviews([], [], [other])
    assert [name for name, _ in found.lines] == ["given"]


def test_what_was_not_run_stays_empty():
    elsewhere = replace(corloc("o", 0.5)[0], dataset="coco")
    pairs = answered(("s", SKIP, "soap", [corloc("s", 0.5)]), ("o", INITIALISED, "soap", [(elsewhere, None)]))
    [found] = overviews(pairs, [])
    assert {cell.kind for _, cells in found.lines for cell in cells} == {"value", "absent"}
