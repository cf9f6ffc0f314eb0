"""Published tables that a report may be compared with."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from dinoskip.errors import ConfigError
from dinoskip.plugins import found
from dinoskip.settings.config import RawConfig, validate
from visualize.report.config import ReportConfig


def test_nothing_is_compared_by_default():
    assert ReportConfig(compare=None).compare == ()


def test_a_table_that_no_installed_paper_has_is_refused():
    with pytest.raises(ValidationError):
        ReportConfig(compare="paper.table9")


def test_without_papers_a_table_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch):
    without = {at: part for at, part in found().items() if at[0] != "papers"}
    monkeypatch.setattr("dinoskip.plugins.found", lambda: without)
    with pytest.raises(ConfigError) as refused:
        validate(ReportConfig, RawConfig({"compare": "paper.table2"}))
    assert refused.value.exit_code == 2
    (line,) = refused.value.problems
    assert "compare" in line
    assert "paper.table2" in line
