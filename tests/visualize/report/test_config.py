from __future__ import annotations

import typing

import pytest
from pydantic import ValidationError

from visualize.paper.others import OTHERS
from visualize.paper.published import PUBLISHED
from visualize.report.config import PaperTable, ReportConfig


def test_every_published_table_can_be_named():
    assert typing.get_args(PaperTable) == (*PUBLISHED, *OTHERS)


def test_one_table_is_a_list_of_one():
    assert ReportConfig(compare="paper.table2").compare == ("paper.table2",)
    assert ReportConfig(compare=None).compare == ()


@pytest.mark.parametrize("compare", ["paper.table9", ["paper.table1", "paper.table1"]])
def test_unknown_tables_and_one_twice_are_refused(compare):
    with pytest.raises(ValidationError):
        ReportConfig(compare=compare)
