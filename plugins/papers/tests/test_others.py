"""Tables of the other papers with our numbers beside."""

import csv
import io

import numpy as np
import pytest

from dinoskip.results.records import ImageRecords
from dinoskip.results.rows import EvalResult
from dinoskip.results.statistics import mcnemar
from dinoskip_papers.cells import OurNumber, OwnDifferences
from dinoskip_papers.labelled import beside
from dinoskip_papers.layout import ComparedTable
from dinoskip_papers.others import OTHERS, reference_of
from visualize.report.diagnostics import epochs_tables


def test_every_line_has_a_number_a_column() -> None:
    for table in OTHERS.values():
        assert {len(numbers) for numbers in table.rows.values()} == {len(table.measures)}, table.title


def top1(label: str, *values: float, key: str = "top1") -> dict[str, dict[str, OurNumber]]:
    """A network of a label whose seeds have these accuracies."""
    rows = tuple(
        EvalResult("top1", value, "classify", "12", "in1k", "val", 50_000, model=f"{label}-adamw-s{seed}")
        for seed, value in enumerate(values)
    )
    return {f"{label}-adamw": {key: OurNumber(f"{label}-adamw", values, rows, len(rows))}}


def beside_alone(name: str, labelled: dict[str, dict[str, dict[str, OurNumber]]]) -> ComparedTable:
    return beside(name, labelled, OwnDifferences({}))


def test_ours_stand_beside_the_papers() -> None:
    measured = {"top1": OurNumber("plain", (80.5,)), "ln κ in": OurNumber("plain", (6.604, 6.61), trained=2, digits=2)}
    table = beside_alone("graying.table3", {"plain": {"plain": measured}, "other": top1("other", 1.0)}).grid
    assert table.columns == ["variant", "", "top-1", "ln κ in", "ln κ out"]
    assert [list(row) for row in table.rows[:3]] == [
        ["plain", "ours", "80.5 (1 seed)", "6.61 ± 0.00 [6.57, 6.65] (2 seeds)", "not run"],
        ["", "paper", "81.0", "6.72", "6.74"],
        ["", "difference", "−0.5", "−0.11", ""],
    ]
    assert table.rows[3][:3] == ["svd_0.9", "ours", "not run"]
    assert len(table.rows) == 1 + 2 * 11


def test_a_cell_is_the_mean_over_seeds_and_not_the_last() -> None:
    table = beside_alone("graying.table4", {"small": top1("small", 80.9, 80.6, 79.1)})
    assert [row[2] for row in table.grid.rows[:3]] == ["80.2 ± 1.0 [77.8, 82.6] (3 seeds)", "80.2", "0.0"]
    cells = list(csv.DictReader(io.StringIO(table.csv)))
    assert (float(cells[0]["ours"]), cells[0]["seeds"], float(cells[0]["difference"])) == (80.2, "3", 0.0)


def test_two_networks_of_one_label_stand_in_no_cell() -> None:
    both = {**top1("small", 80.9), "small-soap": {"top1": OurNumber("small-soap", (70.0,))}}
    table = beside_alone("graying.table4", {"small": both})
    assert table.grid.rows[0][2] == "several: small-adamw and small-soap"
    assert table.filled == (0, 8)
    assert "small-adamw and small-soap would stand in the same cells (small)" in table.grid.notes[-1]


def test_each_line_is_compared_with_the_network_that_it_changes() -> None:
    table = OTHERS["graying.table4"]
    assert [reference_of(label, table) for label in table.rows] == ["", "small", "", "base"]
    plain = OTHERS["graying.table3"]
    assert {reference_of(label, plain) for label in plain.rows} == {"", "plain"}
    found = OTHERS["conditioned.table6"]
    assert [reference_of(label, found) for label in found.rows] == ["", *["in1k_default"] * 3]


def test_the_difference_of_two_lines_is_over_the_same_images() -> None:
    small, changed = (np.r_[np.ones(have, np.uint8), np.zeros(1000 - have, np.uint8)] for have in (800, 812))
    labelled = {"small": top1("small", 80.0), "small_dct": top1("small_dct", 81.2)}
    rows = {name: list(of["top1"].rows) for networks in labelled.values() for name, of in networks.items()}
    ids = tuple(map(str, range(1000)))
    records = {
        rows["small-adamw"][0]: ImageRecords(ids, small), rows["small_dct-adamw"][0]: ImageRecords(ids, changed)
    }  # fmt: skip
    table = beside("graying.table4", labelled, OwnDifferences(rows, records))
    (line,) = (row for row in table.grid.rows if row[1] == "ours − small")
    assert line[2].startswith("+1.2 [+")
    found = list(csv.DictReader(io.StringIO(table.csv)))[2]
    assert float(found["own_p"]) == pytest.approx(mcnemar(changed, small).p)
    assert found["own_paired"] == "True"


def test_epochs_to_the_first_runs_accuracy() -> None:
    def curve(*values: float) -> list[dict[str, float | None]]:
        return [{"epoch": 5 * place, "top1": value} for place, value in enumerate(values, 1)] + [
            {"epoch": 1, "loss": 2}
        ]

    (table,) = epochs_tables({"default": curve(10, 30, 29), "fast": curve(20, 29, 40), "slow": curve(1, 2, 3), "x": []})
    assert table.rows == [
        ["default", 29, 10, pytest.approx(100 * 10 / 15)], ["fast", 40, 10, pytest.approx(100 * 10 / 15)],
        ["slow", 3, "never", "–"],
    ]  # fmt: skip
    assert epochs_tables({"default": curve(1), "dino": [{"epoch": 1, "loss": 1.0}]}) == []
