"""A small form of the made-up studies: pages of equal networks are rarely decided, different ones are."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from benchmarks import decisions
from benchmarks.decisions import BEGIN, END, Made, claimed, page, power_table, rates, score_coverage, write_tables
from benchmarks.made_up import KINDS, ON_PAGES, blank, expected, images, row_of, unit
from benchmarks.miou_intervals import coverage, population, rejected

pytestmark = pytest.mark.slow  # simulated studies; rules of decisions are tested in tests/decisions

PAIR = ("CorLoc", "PCK")


@pytest.mark.parametrize(
    "made",
    [
        Made(60, 1, lines=8),
        Made(12, 1, lines=8),
        Made(60, 2, lines=8),
        Made(12, 3, lines=8),
        Made(3, lines=8),
        Made(6, 10, 0.1, lines=8, common=0.9, kinds=PAIR, networks=5),
        Made(60, lines=8, recorded=False),
    ],
)
def test_pages_of_equal_networks_have_no_verdict(made: Made) -> None:
    """5 % of 20 pages are 1; more than 4 has a chance of 0.3 %. Of one training each 58 % of pages had a verdict."""
    found = rates(made, 20)
    assert found.pages <= 100 * 4 / 20
    assert made.seeds == 1 or found.coverage >= 92


@pytest.mark.parametrize(("classes", "units"), [(21, 12), (150, 6)])
def test_pages_of_few_images_and_many_classes_have_no_verdict(classes: int, units: int) -> None:
    """33 % of pages of 12 images and 21 classes had one, 97 % of those of 150 classes, without any luck of training."""
    found = rates(Made(units, 1, 0.0, lines=8, kinds=(f"mIoU {classes}",)), 20)
    assert found.pages <= 100 * 4 / 20
    assert found.coverage >= 90 if classes == 21 else found.without > 80


def test_measures_of_every_kind_have_a_line_on_the_page() -> None:
    lines = page(Made(12, 1, lines=len(ON_PAGES)), np.random.default_rng(0))
    assert len(lines) == len(ON_PAGES) == 8
    assert {line.benchmark.task for line in lines} > {"probe", "video", "depth", "normals", "objects"}


def test_a_gap_from_before_training_is_no_verdict_and_one_that_was_learnt_is() -> None:
    gap = {"units": 216, "seeds": 5, "spread": 0.1, "gap": 9.0, "lines": 4, "kinds": PAIR}
    assert rates(Made(**gap, gained=0.0), 4).lines == 0
    assert rates(Made(**gap, gained=20.0), 4).lines > 90


def test_claims_of_equal_networks_are_undecided() -> None:
    """Equal networks differed in most pairs of their seeds when only images were taken as random."""
    rng = np.random.default_rng(0)
    found = [claimed(Made(60, 3, 3.0, lines=4, kinds=PAIR), rng) for _ in range(10)]
    assert all(found)
    assert sum(any(one.sign for one in comparisons) for comparisons in found) <= 2


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_unit_of_luck_is_a_standard_error_of_a_difference(kind: str) -> None:
    """The deviation of 150 scores of 12 images, within a quarter of what the calibration found."""
    rng, shift = np.random.default_rng(3), unit(kind, 12)
    values = []
    for _ in range(150):
        shown = images(kind, 12, rng)
        merit = (shown.hard + rng.standard_normal(12)) / math.sqrt(2)
        values.append(row_of(kind, shown, merit, rng, blank(kind, 12)).row.value)
    slope = (expected(kind, 0.25) - expected(kind, -0.25)) / 0.5
    assert abs(slope) * shift == pytest.approx(math.sqrt(2) * np.std(values), rel=0.25)


@pytest.mark.parametrize(("kind", "shift"), [("CorLoc", -1.645), ("delta1", 0.0), ("RMSE", 0.0), ("J&F", 1.5)])
@pytest.mark.parametrize("units", [6, 60])
def test_intervals_of_rows_hold_the_score_of_all_images(kind: str, shift: float, units: int) -> None:
    """93 %, less three standard errors of 150 samples."""
    given, held = score_coverage(kind, shift, units, 150)
    assert given == 100
    assert held >= 100 * (0.93 - 3 * math.sqrt(0.93 * 0.07 / 150))


@pytest.mark.parametrize(("classes", "images"), [(21, 50), (60, 50)])
def test_equal_networks_have_a_miou_that_differs_rarely(classes: int, images: int) -> None:
    """5 % of 60 samples are 3; more than 8 has a chance of 0.5 %."""
    whole = population(classes, 600)
    assert rejected(whole, images, 60)[0] <= 100 * 8 / 60
    assert coverage(whole, 6, 20).given <= 10


def test_the_table_of_power_says_that_two_seeds_find_next_to_nothing() -> None:
    *_, last, end = power_table()
    assert end == ""
    assert [float(cell) for cell in last.split("|")[2:4]] == pytest.approx([212.0, 16.0], rel=0.2)


def test_all_tables_are_made_whatever_the_number_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    small: dict[str, object] = {"UNITS": (6,), "SEEDS": (1, 2), "CASES": decisions.CASES[:1], "CLASSES": (21,)}
    small["SCORED"] = decisions.SCORED[:2]
    for name, value in small.items():
        monkeypatch.setattr(decisions, name, value)
    monkeypatch.setattr("benchmarks.miou_intervals.IMAGES", (6, 60))
    few = partial(population, images=300)
    monkeypatch.setattr("benchmarks.miou_intervals.population", lambda classes, _, poor: few(classes, poor=poor))
    tables = decisions.rates_tables(3, 4)
    assert sum(line.startswith("|---") for line in tables) == 6
    assert sum(line.startswith("| usual | 21 |") for line in tables) == 2
    asked = [("CorLoc", 0.0, 6, 5), ("CorLoc", 0.0, 12, 5)]
    assert decisions.of_each(score_coverage, asked, 1) == decisions.of_each(score_coverage, asked, 2)


def test_tables_stand_between_their_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"a\n{BEGIN}\nold\n{END}\nb\n")
    write_tables(page, ["new"], "by")
    assert page.read_text() == f"a\n{BEGIN}\nby\n\nnew\n{END}\nb\n"
