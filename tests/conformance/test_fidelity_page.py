"""The page of fidelity: a line a claim, which names a comparison that is missed; a CSV line a comparison."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

from tests.conformance.fidelity import ALWAYS, CUTTING
from tests.conformance.fidelity_page import CLAIMS, PAGE, expected, not_made, page, table


def line(check: str, what: str, want: float | str, got: float, tolerance: float = 0.0, **more: Any) -> dict[str, Any]:
    test = f"tests/conformance/test_papers_x.py::test_{check}_of_something"
    known = {"paper": CUTTING, "equation": "eq. 1", "what": what, "expected": want, "got": got, "tolerance": tolerance}
    return {**known, "passed": True, "test": test, **more}


LINES = [
    line("06", "first", "< 4", 1.0),
    line("06", "second", "< 4", 3.9),
    line("02", "|missed|", 1.0, 5.0, 0.5, passed=False),
    line("02", "exact", 1.0, 1.0, 0.5),
    line("trap_iv", "other", "> 1", 2.0, paper=ALWAYS),
]


def test_a_line_for_each_claim_shows_what_is_missed() -> None:
    assert [row for row in page(LINES).splitlines() if row.startswith("- `")] == [
        f"- `2` {CLAIMS['2']} (eq. 1): **1/2**, |missed|: 5 (1 ± 0.5)",
        f"- `6` {CLAIMS['6']} (eq. 1)",
        f"- `trap iv` {CLAIMS['trap iv']} (eq. 1)",
    ]
    assert "4 of 5 comparisons are met." in page(LINES)


def test_the_csv_has_every_comparison() -> None:
    rows = list(csv.DictReader(table(LINES).splitlines()))
    assert [row["what"] for row in rows] == [one["what"] for one in LINES]
    assert [row["met"] for row in rows] == ["yes", "yes", "no", "yes", "yes"]


def test_every_check_has_its_claim_and_the_documents_agree() -> None:
    sources = [path.read_text() for path in Path(__file__).parent.glob("test_papers_*.py")]
    checks = {found for text in sources for found in re.findall(r"def test_(\d+|trap_[iv]+)_", text)}
    assert {check.lstrip("0").replace("_", " ") for check in checks} == set(CLAIMS)
    with PAGE.with_suffix(".csv").open() as file:
        rows = list(csv.DictReader(file))
    assert f"All {len(rows)} comparisons are met." in PAGE.read_text()
    assert {row["check"] for row in rows} == set(CLAIMS)
    assert {row["met"] for row in rows} == {"yes"}
    assert expected(line("06", "", "1..2", 1.5)) == "1 to 2"


def test_the_lists_of_what_is_made_are_those_of_the_records() -> None:
    assert PAGE.read_text(encoding="utf-8").endswith(not_made()), "python -m tests.conformance.fidelity_page --lists"
