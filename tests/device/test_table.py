"""Every hot path on the device: nothing mixes, and host reads, uploads and kernels are those stated."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.device.paths import PATHS, measure
from tests.device.table import STATED, chosen_device, row

PAGE = Path(__file__).parents[2] / "docs" / "measured.md"


@pytest.mark.parametrize("name", PATHS)
def test_path_asks_of_the_device_what_is_stated(name: str) -> None:
    device = chosen_device()
    assert STATED[name].faults(measure(name, device), exact=not device.real) == []


def test_the_page_shows_the_table() -> None:
    page = PAGE.read_text()
    assert list(STATED) == list(PATHS)
    assert [row(name) for name in STATED if row(name) not in page] == []
