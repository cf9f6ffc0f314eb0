"""A small form of the made-up studies: pages of equal networks are rarely decided, different ones are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.decisions import BEGIN, END, Made, claimed, rates, write_tables
from benchmarks.miou_intervals import population, rejected


@pytest.mark.parametrize(
    "made",
    [
        Made(60, 1, lines=8),
        Made(60, 2, lines=8),
        Made(12, 3, lines=8),
        Made(3, lines=8),
        Made(6, 10, 0.1, lines=8, common=0.9),
        Made(60, lines=8, recorded=False),
    ],
)
def test_pages_of_equal_networks_have_no_verdict(made: Made) -> None:
    """5 % of 40 pages are 2; more than 7 has a chance of 0.1 %. Two seeds gave verdicts on 70 % of pages before."""
    found = rates(made, 40)
    assert found.pages <= 100 * 7 / 40
    assert found.coverage >= 92


def test_a_gap_from_before_training_is_no_verdict_and_one_that_was_learnt_is() -> None:
    gap = {"units": 216, "seeds": 5, "spread": 0.1, "gap": 9.0, "lines": 4}
    assert rates(Made(**gap, gained=0.0), 4).lines == 0
    assert rates(Made(**gap, gained=20.0), 4).lines > 90


def test_claims_of_equal_networks_are_undecided() -> None:
    """By images alone equal networks differed in most pairs of their seeds."""
    rng = np.random.default_rng(0)
    found = [claimed(Made(60, 3, 3.0, lines=4), rng) for _ in range(10)]
    assert all(found)
    assert sum(any(one.sign for one in comparisons) for comparisons in found) <= 2


@pytest.mark.parametrize(("classes", "images"), [(21, 50), (60, 50)])
def test_equal_networks_have_a_miou_that_differs_rarely(classes: int, images: int) -> None:
    """5 % of 60 samples are 3; more than 8 has a chance of 0.5 %."""
    assert rejected(population(classes, 600), images, 60)[0] <= 100 * 8 / 60


def test_tables_stand_between_their_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"a\n{BEGIN}\nold\n{END}\nb\n")
    write_tables(page, ["new"], "by")
    assert page.read_text() == f"a\n{BEGIN}\nby\n\nnew\n{END}\nb\n"
