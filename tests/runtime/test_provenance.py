"""The date, version and kernels of what was computed."""

from __future__ import annotations

import re

import pytest

from dinoskip import __version__
from dinoskip.runtime.arithmetic import kernels
from dinoskip.runtime.provenance import EPOCH, made, utc_date


def test_what_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(EPOCH, raising=False)
    found = made()
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", found.pop("date"))
    assert found == {"version": __version__, "kernels": kernels()}


@pytest.mark.parametrize(("given", "fixed"), [("0", True), ("1700000000", True), ("soon", False), ("", False)])
def test_the_date_of_a_reproducible_build(monkeypatch: pytest.MonkeyPatch, given: str, fixed: bool) -> None:
    monkeypatch.setenv(EPOCH, given)
    expected = {"0": "1970-01-01T00:00:00Z", "1700000000": "2023-11-14T22:13:20Z"}
    assert (utc_date() == expected.get(given)) is fixed
