"""The published numbers, and which of our rows stand beside them."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.special import stdtr

from dinoskip.errors import ConfigError
from dinoskip.results.records import ImageRecords
from dinoskip.results.rows import EvalResult
from dinoskip.results.statistics import mcnemar
from dinoskip_papers.cells import OurNumber
from dinoskip_papers.compare import ComparedStudy, compared
from dinoskip_papers.published import PUBLISHED, published
from visualize.rows import DEFAULT, INITIALISED, SKIP, StudyVariant
from visualize.tables import latex, markdown

PAPERS = Path(__file__).parents[4] / "shared" / "papers"
NUMBER = r"\d\d\.\d"


def rows(model, task="probe", metric="mIoU", dataset="voc", epochs=(20, 30), level=50.0, **more):
    protocol = "paper, 30 epochs" if task == "probe" else "tokencut tau=0.2 eps=1e-05"
    about = {
        "protocol": protocol,
        "norm": "final",
        "facet": "out" if task == "probe" else "key",
        "model": model,
        **more,
    }
    return [
        EvalResult(metric, level + 0.1 * epoch + number, task, block, dataset, "val", 100, epoch=epoch, **about)
        for epoch in epochs
        for number, block in enumerate(("1", "9", "1+9"))
    ]


def study(*variants, epochs=30):
    return ComparedStudy(variants, {"voc": "VOC2012", "stuff": "COCO-Stuff"}, epochs, "imagenette")


VARIANTS = (
    StudyVariant("other", SKIP, "soap", 12, rows("other", level=10.0)),
    StudyVariant("skip", SKIP, "adamw", 12, rows("skip", low=50.0, high=56.0)),
    StudyVariant(
        "ours", INITIALISED, "adamw", 12, rows("ours", level=60.0) + rows("ours", dataset="stuff", level=20.0)
    ),
    StudyVariant("default", DEFAULT, "adamw", 12, rows("default", level=99.0)),
    StudyVariant("partial", "", "adamw", 12, rows("partial", level=99.0)),
)


def ours(grid):
    """The first number of each printed row."""
    return [one[3] for one in grid.rows if one[2] == "ours"]


def line(grid, *labels):
    """The three lines of one printed row."""
    start = next(i for i, one in enumerate(grid.rows) if tuple(one[: len(labels)]) == labels)
    return grid.rows[start : start + 3]


def test_a_cell_holds_the_row_of_its_variant_epoch_and_features():
    grid = compared(published("paper.table2"), study(*VARIANTS)).grid
    ours, paper, gap = line(grid, "single feature", "AdamW")
    assert ours[2:] == [
        "ours",
        "54.0 [50.0, 56.0] b9 (1 seed)",
        "64.0 b9 (1 seed)",
        "63.0 b9 (1 seed)",
        "not run",
        "24.0 b9 (1 seed)",
        "23.0 b9 (1 seed)",
        *["not run"] * 3,
    ]
    assert paper[2:] == ["paper", "56.3", "62.3", "62.1", "24.6", "24.9", "28.3", "23.7", "22.5", "22.8"]
    assert gap[2:] == ["difference", "−2.3", "+1.7", "+0.9", "", "−0.9", "−5.3", "", "", ""]
    several = line(grid, "multiscale", "AdamW")[0]
    assert several[3:6] == ["55.0 [50.0, 56.0] (1 seed)", "65.0 (1 seed)", "64.0 (1 seed)"]
    assert line(grid, "single feature", "SOAP")[0][3] == "14.0 b9 (1 seed)"
    notes = " ".join(grid.notes)
    assert "variants skip, ours, other, trained on imagenette" in notes
    assert "epoch 300 of the paper is our 30 of 30, epoch 200 of the paper is our 20 of 30" in notes
    assert "VOC2012 is voc; COCO-Stuff is stuff" in notes
    assert "n = 100" in notes


def test_random_weights_and_baselines_stand_in_the_papers_table():
    start = rows("skip", epochs=(0,), level=5.0, low=4.0, high=6.0)
    skip = StudyVariant("skip", SKIP, "adamw", 12, [*rows("skip"), *start])
    floor = [start[0].baseline("majority class", 3.4), start[0].baseline("chance", 1.0)]
    floor += [rows("skip", dataset="elsewhere")[0].baseline("chance", 2.0)]
    grid = compared(published("paper.table2"), study(skip, VARIANTS[2]), floor).grid
    first, untrained, paper = line(grid, "single feature", "AdamW")
    assert (first[3], untrained[2:6], paper[2]) == (
        "54.0 b9 (1 seed)",
        ["untrained", "6.0 [4.0, 6.0] b9 (1 seed)", "", ""],
        "paper",
    )
    assert line(grid, "multiscale", "AdamW")[1][3] == "7.0 [4.0, 6.0] (1 seed)"
    assert line(grid, "single feature", "SOAP")[1][2] == "paper"
    assert [one[:4] for one in grid.rows[-2:]] == [
        ["baseline: majority class", "", "", "3.4"],
        ["baseline: chance", "", "", "1.0"],
    ]
    assert grid.rows[-1][3:] == ["1.0"] * 3 + [""] * 6
    assert len(grid.rows) - 2 in grid.rules


def test_other_settings_of_the_same_measure_are_counted_and_not_shown():
    skip = StudyVariant("skip", SKIP, "adamw", 12, rows("skip", level=80.0, norm="none") + rows("skip"))
    grid = compared(published("paper.table2"), study(skip)).grid
    assert line(grid, "single feature", "AdamW")[0][3] == "54.0 b9 (1 seed)"
    assert "6 more rows have other settings" in " ".join(grid.notes)
    cuts = rows("skip", "tokencut", "CorLoc", level=80.0, protocol="lost k=100")
    skip = StudyVariant("skip", SKIP, "adamw", 12, [*cuts, *rows("skip", "tokencut", "CorLoc", level=30.0)])
    assert line(compared(published("paper.figure3"), study(skip)).grid, "", "AdamW")[0][3] == "34.0 b9 (1 seed)"


def test_tables_of_depth_take_the_variant_of_that_depth():
    variants = [
        StudyVariant(f"d{depth}", INITIALISED, "adamw", depth, rows(f"d{depth}", level=depth)) for depth in (12, 9)
    ]
    grid = compared(published("paper.table3"), study(*variants)).grid
    assert ours(grid) == ["not run", "16.0 (1 seed)", "not run", "not run", "13.0 (1 seed)"]
    cuts = [StudyVariant("d9", INITIALISED, "adamw", 9, rows("d9", "tokencut", "CorLoc", level=9.0))]
    assert ours(compared(published("paper.table4"), study(*cuts)).grid)[4] == "13.0 b9 (1 seed)"


def test_weights_without_an_epoch_stand_in_every_column_of_their_kind():
    given = StudyVariant("given", SKIP, "adamw", 12, rows("given", epochs=(0,)))
    grid = compared(published("paper.table2"), study(given, epochs=0)).grid
    assert line(grid, "single feature", "AdamW")[0][3:5] == ["51.0 b9 (1 seed)", "not run"]
    assert "the epochs of the weights are not known" in " ".join(grid.notes)


def test_only_a_classification_among_a_thousand_classes_is_imagenet():
    def top1(classes):
        return [EvalResult("top1", 70.0, "classify", "12", "mine", "val", 50, model="a", classes=classes, epoch=30)]

    table = published("paper.table1")
    assert ours(compared(table, study(StudyVariant("a", DEFAULT, "soap", 12, top1(1000)))).grid)[3] == "70.0 (1 seed)"
    grid = compared(table, study(StudyVariant("a", DEFAULT, "soap", 12, top1(10)))).grid
    assert set(ours(grid)) == {"not run"}
    assert not any("difference" in one for one in grid.rows)
    assert "It evaluates none of ImageNet" in grid.notes[-1]


def test_csv_has_a_line_for_each_printed_number():
    lines = list(csv.DictReader(io.StringIO(compared(published("paper.table2"), study(*VARIANTS)).csv)))
    assert len(lines) == 36
    first = lines[0]
    assert (first["row"], first["column"], first["variant"], first["block"]) == (
        "single feature AdamW",
        "VOC2012, 300 skip",
        "skip",
        "9",
    )
    assert [first[key] for key in ("ours", "low", "high", "paper", "difference")] == [
        "54.0",
        "50.0",
        "56.0",
        "56.3",
        "-2.3",
    ]
    assert [lines[3][key] for key in ("ours", "paper", "difference", "variant")] == ["not run", "24.6", "", ""]


# --- seeds, and two networks for one cell ---------------------------------------------------------------


def accuracies(*values, name="skip-soap", role=SKIP, of=1000):
    """A network trained with a seed for each top-1, as the variants of one family."""
    about = {"classes": 1000, "epoch": 30}
    return [
        StudyVariant(
            f"{name}-s{seed}", role, "soap", 12, family=name, seed=seed,
            rows=[EvalResult("top1", value, "classify", "12", "in1k", "val", of, model=f"{name}-s{seed}", **about)],
        )
        for seed, value in enumerate(values)
    ]  # fmt: skip


def test_a_cell_holds_the_mean_of_all_seeds_with_deviation_interval_and_number():
    """Table 1's own numbers: with seeds 80.9, 80.6, 79.1 skip and SOAP is 0.1 above 80.1, not 0.8 as the first is."""
    table = compared(published("paper.table1"), study(*accuracies(80.9, 80.6, 79.1)))
    cell, paper, gap = (one[3] for one in line(table.grid, "skip", "ViT-Base + SOAP"))
    assert (cell, paper, gap) == ("80.2 ± 1.0 [77.8, 82.6] (3 seeds)", "80.1", "+0.1")
    (found,) = [one for one in csv.DictReader(io.StringIO(table.csv)) if one["ours"] != "not run"]
    numbers = [float(found[key]) for key in ("ours", "deviation", "low", "high", "difference")]
    assert numbers == pytest.approx([80.2, 0.964365, 77.804384, 82.595616, 0.1], abs=1e-6)
    assert (found["seeds"], found["variant"]) == ("3", "skip-soap")
    for written in (markdown(table.grid), latex(table.grid)):
        assert "80.2" in written
        assert "3 seeds" in written
        assert "79.1" not in written


def test_the_order_of_seeds_changes_no_cell():
    runs = accuracies(80.9, 80.6, 79.1)
    grids = [compared(published("paper.table1"), study(*order)).grid for order in (runs, runs[::-1])]
    assert grids[0].rows == grids[1].rows


def test_each_seed_is_read_at_its_own_best_block_and_missing_ones_are_counted():
    seeds = [
        StudyVariant(f"skip-s{seed}", SKIP, "adamw", 12, rows(f"skip-s{seed}", level=level), family="skip", seed=seed)
        for seed, level in enumerate((50.0, 52.0))
    ]
    first = [replace(row, value=row.value + 5) if row.block == "1" else row for row in seeds[0].rows]
    left = StudyVariant("skip-s2", SKIP, "adamw", 12, family="skip", seed=2)
    grid = compared(published("paper.table2"), study(replace(seeds[0], rows=first), seeds[1], left)).grid
    assert line(grid, "single feature", "AdamW")[0][3] == "57.0 ± 1.4 [44.3, 69.7] b1 b9 (2 of 3 seeds)"


def test_untrained_seeds_are_averaged_too():
    runs = [
        StudyVariant(
            f"skip-s{seed}", SKIP, "adamw", 12, rows(f"skip-s{seed}", epochs=(0, 30), level=level), family="skip"
        )
        for seed, level in enumerate((50.0, 54.0))
    ]
    untrained = line(compared(published("paper.table2"), study(*runs)).grid, "single feature", "AdamW")[1]
    assert untrained[2:4] == ["untrained", "53.0 ± 2.8 [27.6, 78.4] b9 (2 seeds)"]


def test_two_networks_for_one_cell_stand_in_none_and_are_named():
    runs = [*accuracies(80.9, 80.6), *accuracies(60.0, name="again")]
    table = compared(published("paper.table1"), study(*runs))
    assert line(table.grid, "skip", "ViT-Base + SOAP")[0][3] == "several: skip-soap and again-s0"
    assert table.filled == (0, 6)
    assert "skip-soap and again-s0 would stand in the same cells (skip ViT-Base + SOAP)" in table.grid.notes[-1]
    lines = list(csv.DictReader(io.StringIO(table.csv)))
    assert [one["ours"] for one in lines if one["row"] == "skip ViT-Base + SOAP"] == ["several: skip-soap and again-s0"]
    assert not any("difference" in one for one in table.grid.rows)


def _hits(disagree: int, more: int) -> tuple[np.ndarray, np.ndarray]:
    """Hits of two networks on 1,000 images that differ on ``disagree``, of which the first has ``more`` more."""
    first, second = np.zeros(1000, np.uint8), np.zeros(1000, np.uint8)
    both = 800 - (disagree - more) // 2
    first[:both] = second[:both] = 1
    ours = (disagree + more) // 2
    first[both : both + ours] = 1
    second[both + ours : both + disagree] = 1
    return first, second


@pytest.mark.parametrize("recorded", [True, False])
def test_two_networks_of_ours_are_compared_over_the_same_images_where_there_are_records(recorded: bool):
    ours, skip = _hits(60, 20)
    runs = [*accuracies(100 * ours.mean(), name="ours", role=INITIALISED), *accuracies(100 * skip.mean())]
    ids = tuple(map(str, range(1000)))
    records = {run.rows[0]: ImageRecords(ids, hits) for run, hits in zip(runs, (ours, skip), strict=True)}
    lows = [replace(row, **dict(zip(("low", "high"), (row.value - 2.5, row.value + 2.5), strict=True)))
            for row in (run.rows[0] for run in runs)]  # fmt: skip
    if not recorded:
        runs, records = [replace(run, rows=[row]) for run, row in zip(runs, lows, strict=True)], {}
    table = compared(published("paper.table1"), replace(study(*runs), records=records))
    own = line(table.grid, "skipless + our init", "ViT-Base + SOAP")
    apart = next(one for one in table.grid.rows if one[2] == "ours − skip")[3]
    found = next(
        one for one in csv.DictReader(io.StringIO(table.csv)) if one["row"] == "skipless + our init ViT-Base + SOAP"
    )
    assert own[0][3].endswith("(1 seed)")
    expected = mcnemar(ours, skip).p if recorded else 2 * float(stdtr(999, -2.0 / (2.5 / 1.96 * 2**0.5)))
    assert float(found["own_p"]) == pytest.approx(expected, rel=1e-3)
    assert (found["own_paired"], ", unpaired" in apart) == (str(recorded), not recorded)
    assert apart.startswith("+2.0 [")
    assert expected < 0.05 if recorded else expected > 0.05


def test_cells_of_the_golden_cases():
    folder = Path(__file__).parents[4] / "shared" / "golden" / "meaning"
    if not folder.is_dir():
        pytest.skip("needs the golden cases beside the project (shared/golden/meaning)")
    cases = [case for case in json.loads((folder / "index.json").read_text())["cases"] if case["task"] == "cells"]
    assert cases
    for case in cases:
        values = np.load(folder / case["file"])["values"]
        found = OurNumber("a", tuple(values.tolist())).summary
        for name in ("mean", "deviation", "low", "high"):
            known, value = case["expected"][name], getattr(found, name)
            same = np.isnan(value) if known is None else abs(value - known) <= case["tolerance"]["all"]
            assert same, (case["name"], name)
        assert found.n == case["expected"]["number"]


def test_unknown_names_say_the_known_ones():
    with pytest.raises(ConfigError, match=r"'paper\.table9' is none of paper\.table1"):
        published("paper.table9")


# --- against the paper ---------------------------------------------------------------------------------


def _printed(start, end):
    """Numbers of the lines between two texts of the paper, by line and by column (tab)."""
    source = next(PAPERS.glob("000_*.txt"), None)
    if source is None:
        pytest.skip("needs the extracted papers beside the project (shared/papers)")
    text = source.read_text(encoding="utf-8")
    part = text[text.index(start) + len(start) :]
    part = part[: part.index(end)]
    return [
        [re.findall(NUMBER, cell) for cell in one.split("\t")] for one in part.splitlines() if re.search(NUMBER, one)
    ]


def _cells(name):
    return [[cell.paper for cell in cells] for _, cells in published(name).rows]


def test_table_1_is_the_papers():
    printed = [number for one in _printed("Table 1: ", "except that") for cell in one for number in cell]
    assert [float(number) for number in printed] == [cell for (cell,) in _cells("paper.table1")]


@pytest.mark.parametrize(
    ("name", "start", "end"),
    [("paper.table2", "Table 2: ", "Figure 2: "), ("paper.figure3", "Figure 3: ", "different transformer")],
)
def test_tables_over_epochs_are_the_papers(name, start, end):
    printed = [[cell for cell in one if cell] for one in _printed(start, end)]
    ours = _cells(name)
    for number, columns in enumerate(printed):  # each line of the text holds AdamW and SOAP
        adamw, soap = ours[2 * number : 2 * number + 2]
        found = [[float(one) for one in column] for column in columns]
        assert found == [[one for one in pair if one is not None] for pair in zip(adamw, soap, strict=True)]


@pytest.mark.parametrize(
    ("name", "start", "end"), [("paper.table3", "Table 3: ", "Figure 3: "), ("paper.table4", "Table 4: ", "6.3 QUAL")]
)
def test_tables_over_depth_are_the_papers(name, start, end):
    ours = _cells(name)
    columns = list(zip(*ours, strict=True))
    printed = [[cell for cell in one if cell] for one in _printed(start, end)]
    found = [[float(number) for one in printed for number in one[column]] for column in range(len(columns))]
    assert found == [list(column) for column in columns]


def test_published_tables_are_rectangular_percentages():
    for table in PUBLISHED.values():
        spans = {sum(span for _, span in head) for head in table.head}
        for labels, cells in table.rows:
            assert {len(labels) + len(cells)} == spans
            assert all(cell.paper is None or 0 < cell.paper <= 100 for cell in cells)
