"""The recorded cases that the tests of this folder compare with are all read where they are there."""

from __future__ import annotations

import pytest

from tests.helpers.golden import recorded

COUNTS = [
    ("dense", "cluster", 6), ("dense", "ibot", 3), ("dense", "mae", 4), ("dense", "maskcut", 6),
    ("dense", "saliency", 4), ("dense", "depth", 0), ("dense", "depthhead", 0), ("dense", "video", 0),
    ("dense", "jf", 0), ("dense", "pck", 0), ("next", "readpoint", 7), ("miou", None, 0),
    ("meaning", "areas", 0), ("meaning", "cells", 0),
    ("meaning", "degenerate", 0), ("meaning", "posremove", 0), ("meaning", "readings", 4),
    ("meaning", "object_dino", 8),
]  # fmt: skip
"""Folder, task, and how many cases, 0 for some."""


@pytest.mark.parametrize(("folder", "task", "count"), COUNTS)
def test_cases_are_found(folder: str, task: str | None, count: int) -> None:
    place, cases = recorded(folder, task)
    if not place.is_dir():
        pytest.skip(f"../shared/golden/{folder} is absent")
    assert len(cases) == count or (count == 0 and cases)
