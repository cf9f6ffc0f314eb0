"""The page of the slots: it says how many there are, and what they allow."""

from __future__ import annotations

import pytest

from studies import slots_page
from studies.slots_page import ALLOWED, allowed, committed_page, page
from tests.helpers.slots import slot

LEVELS = {"A": {"P1": 0.4, "P2": 0.3}, "B": {"P1": 0.7, "P2": 0.5}, "C": {"P1": 0.4, "P2": 0.3}}


@pytest.mark.parametrize(
    ("numbers", "which"), [([], 0), ([1], 1), ([2], 2), ([1, 2], 2), ([1, 2, 3], 3), ([2, 3, 4], 4)]
)
def test_what_slots_allow(numbers: list[int], which: int) -> None:
    assert allowed([slot(number, LEVELS) for number in numbers]) == ALLOWED[which]


def test_below_four_slots_nothing_is_compared() -> None:
    text = page([slot(number, LEVELS) for number in (2, 3)])
    assert "**2 slots, 2 with a seed of every arm.**" in text
    assert "Nothing is decided" in text
    assert "## Answer" not in text
    assert "## All measures" in text
    assert "| k-NN, last block | 50.0 (50.0 50.0) |" in text


def test_the_rule_is_applied_with_five_seeds_and_slot_1_shows_its_choice() -> None:
    choice = {
        "tried": {arm: {"0.0001": 20.0, "0.0005": 30.0, "0.002": 25.0} for arm in "ABC"}, "epochs_chosen": 90,
        "rates": dict.fromkeys("ABC", 5e-4), "optimizers": {"A": "adamw", "B": "soap", "C": "adamw"},
    }  # fmt: skip
    text = page([slot(1, LEVELS, **choice), *(slot(number, LEVELS) for number in range(2, 7))])
    assert "**6 slots, 5 with a seed of every arm.**" in text
    assert text.count("| B − A, ") == text.count("| C − A, ") == 2
    assert "**better by " in text
    assert "| A | 20.0 | **30.0** | 25.0 |  |" in text
    assert "90 epochs a training" in text
    assert "B was dead at every rate" in text
    assert "A, fresh: complete graphs, %" in text


def test_the_page_says_that_b0_took_the_place_of_b() -> None:
    tried = {arm: {"0.0001": 20.0, "0.0005": 30.0} for arm in ("A", "B", "B0", "C")}
    choice = {"tried": tried, "epochs_chosen": 90, "rates": {"A": 5e-4, "B": 1e-4, "C": 5e-4}}
    replaced, kept = (
        page([slot(1, LEVELS, **choice, labels={"A": "skip", "B": label, "C": "annealed"})])
        for label in ("printed", "paper")
    )
    assert "**B is B0 in slots 2 to 6**" in replaced
    assert "| B0 | **20.0** | 30.0 |  |  |" in replaced
    assert "| B | 20.0 | 30.0 |  |  |" in replaced
    assert "B is B0" not in kept
    assert "| B | **20.0** | 30.0 |  |  |" in kept
    assert "| B0 | 20.0 | 30.0 |  |  |" in kept


def test_what_was_cut_is_said() -> None:
    pieces = {"evaluate": {"state": "done", "seconds": 80.0}, "starts": {"state": "cut: 3 s were left", "seconds": 0.0}}
    assert "| starts |" in page([slot(2, LEVELS, pieces=pieces)])


def test_the_committed_page_is_that_of_the_committed_rows() -> None:
    assert slots_page.PAGE.read_text() == committed_page()
