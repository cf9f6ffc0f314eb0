"""The paper's numbers as rows; their verdicts are in test_claims.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from dinoskip_papers.cells import OurNumber
from dinoskip_papers.compare import find
from dinoskip_papers.published import PUBLISHED
from studies.paper_as_study import HALF_WIDTHS, paper_as_study
from studies.paper_claims import verdict_table

DOCS = Path(__file__).parents[3] / "docs/report.md"


def test_every_legible_number_is_found_again_in_its_cell():
    study = paper_as_study()
    numbers = [number for table in PUBLISHED.values() for _, row in table.rows for number in row]
    assert sum(number.paper is None for number in numbers) == 1
    for number in numbers:
        ours = find(number, study)
        assert ours is None or isinstance(ours, OurNumber)
        assert (None if ours is None else ours.summary.mean) == number.paper
        if ours is not None:
            assert ours.interval[1] - ours.interval[0] == pytest.approx(2 * HALF_WIDTHS[number.task])


def test_the_document_says_how_many_claims_are_supported_and_which_are_not():
    head, line, *rows = verdict_table()
    others = [row for row in rows if "| supported, one training each: " not in row]
    assert "\n".join([head, line, *others]) in DOCS.read_text()
    assert f"Of {len(rows)} claims {len(rows) - len(others)} are supported." in DOCS.read_text()
