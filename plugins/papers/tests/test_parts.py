"""The plug-in's parts: complete, in their order, named as ``report.compare`` knows them; the command's place."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from dinoskip.cli import main
from dinoskip.testing import problems_of
from dinoskip_papers.others import OTHERS
from dinoskip_papers.published import PUBLISHED
from visualize.report.config import ReportConfig
from visualize.report.papers import paper_of, table_names


def test_every_published_table_can_be_named_in_its_order() -> None:
    assert table_names()[: len(PUBLISHED) + len(OTHERS)] == (*PUBLISHED, *OTHERS)


def test_one_table_is_a_list_of_one() -> None:
    assert ReportConfig(compare="paper.table2").compare == ("paper.table2",)  # type: ignore[arg-type]


@pytest.mark.parametrize("compare", ["paper.table9", ["paper.table1", "paper.table1"]])
def test_unknown_tables_and_one_twice_are_refused(compare: object) -> None:
    with pytest.raises(ValidationError):
        ReportConfig(compare=compare)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("group", "name"),
    [
        ("papers", "cutting_the_skip"),
        ("papers", "graying"),
        ("papers", "conditioned"),
        ("papers", "quantisation"),
        ("commands", "paper"),
    ],
)
def test_a_part_is_complete(group: str, name: str) -> None:
    assert problems_of(group, name) == []


def test_each_table_is_of_one_paper() -> None:
    assert [paper_of(name).order for name in ("paper.figure3", "graying.table2", "conditioned.table6")] == [10, 20, 30]


def test_help_lists_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    words = [
        line.split()[0] for line in capsys.readouterr().out.splitlines() if line.startswith("    ") and line.strip()
    ]
    assert "paper" in words
