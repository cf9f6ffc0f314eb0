"""Consequences of verdicts on data."""

from __future__ import annotations

import pytest

from dinoskip.data.verdicts import DataVerdict, accepted_checks, settle
from dinoskip.errors import ConfigError, DataError

SAID = DataVerdict("equal-files", "voc", "said", "voc val: 3 of 9 are trained on")
DOUBTFUL = DataVerdict("equal-files", "voc", "doubtful", "voc val: 3 of 9 are in train", "remove them")
OTHER = DataVerdict("equal-files", "ade", "doubtful", "ade val: 1 of 9 is in train", "remove it")
REFUSED = DataVerdict("equal-files", "voc", "refused", "voc: one split twice", "name two")


def test_what_is_said_stops_nothing_and_what_is_accepted_is_told() -> None:
    assert settle([], ()) == []
    assert settle([SAID], ()) == []
    assert settle([SAID, DOUBTFUL], {"equal-files:voc"}) == ["equal-files:voc: voc val: 3 of 9 are in train"]
    assert [SAID.line, DOUBTFUL.line] == [SAID.text, f"{DOUBTFUL.text} (doubtful)"]


def test_all_that_is_doubtful_and_not_accepted_is_said_at_once_with_its_name() -> None:
    with pytest.raises(DataError) as caught:
        settle([DOUBTFUL, SAID, OTHER], ())
    assert caught.value.exit_code == 3
    assert len(caught.value.problems) == 2
    assert ["--accept equal-files:voc" in line for line in caught.value.problems] == [True, False]
    with pytest.raises(DataError) as caught:
        settle([DOUBTFUL, OTHER], {"equal-files:voc"})
    assert len(caught.value.problems) == 1
    assert "--accept equal-files:ade" in caught.value.problems[0]


def test_what_is_refused_cannot_be_accepted() -> None:
    with pytest.raises(ConfigError) as caught:
        settle([DOUBTFUL, REFUSED], {"equal-files:voc"})
    assert caught.value.exit_code == 2
    assert len(caught.value.problems) == 1


def test_rows_name_the_checks_of_their_own_data_set() -> None:
    lines = ["equal-files:pets: pets val: 1 of 6", "one-class:pets: every: one", "one-class:birds: b"]
    assert accepted_checks(lines, "pets") == "equal-files, one-class"
    assert accepted_checks(lines, "bird") == ""
