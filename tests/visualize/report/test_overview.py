"""The report's first screen: networks × measures, and the sentence above them."""

from __future__ import annotations

from dataclasses import replace

from tests.visualize.report.test_answer import answered, corloc
from visualize.report.answer import SAME_WEIGHTS, verdict
from visualize.report.overview import NOT_SEPARATING, overview_tables, overviews
from visualize.rows import DEFAULT, INITIALISED, SKIP


def of_three(*, weights=""):
    rates = {"s": 0.6, "o": 0.9, "d": 0.2}
    roles = {"s": SKIP, "o": INITIALISED, "d": DEFAULT}
    return answered(*((n, roles[n], "soap", [corloc(n, rate, weights=weights)]) for n, rate in rates.items()))


def test_each_network_has_a_line_and_each_verdict_a_word_and_a_number():
    [found] = overviews(of_three(), [])
    assert found.measures == ("CorLoc, voc val",)
    cells = {name: (cell.kind, cell.word, cell.number) for name, (cell,) in found.lines}
    assert cells == {
        "s": ("value", "block 1", "60.0"),
        "o": ("higher", "higher, one training each", "+30.0"),
        "d": ("lower", "lower, one training each", "−40.0"),
    }
    [table] = overview_tables([found])
    higher, lower = "higher, one training each", "lower, one training each"
    assert table.rows == [["s", "block 1 60.0"], ["o", f"{higher} +30.0"], ["d", f"{lower} −40.0"]]
    assert verdict(of_three()) == (
        f"Compared with “s”: o is {higher}, on 1 of 1 metrics; d is {lower}, on 1 of 1 metrics."
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
    assert verdict(pairs) == f"o and s have {SAME_WEIGHTS}."
    [found] = overviews(pairs, [])
    assert dict(found.lines)["o"][0].word == SAME_WEIGHTS
    other = replace(row, model="o", weights="other")
    pairs = answered(("s", SKIP, "soap", [(row, record)]), ("o", INITIALISED, "soap", [(other, record)]))
    assert verdict(pairs).startswith("Undecided: ")


def test_what_was_not_run_stays_empty():
    elsewhere = replace(corloc("o", 0.5)[0], dataset="coco")
    pairs = answered(("s", SKIP, "soap", [corloc("s", 0.5)]), ("o", INITIALISED, "soap", [(elsewhere, None)]))
    [found] = overviews(pairs, [])
    assert {cell.kind for _, cells in found.lines for cell in cells} == {"value", "absent"}
