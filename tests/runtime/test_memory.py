"""The limit of usable memory: the machine's, or a control group's where that is less."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dinoskip.runtime import memory
from dinoskip.runtime.memory import SHARE, _read_limit, memory_share, usable_memory


def test_it_is_at_most_the_machine_s() -> None:
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 2**26 < usable_memory() <= physical
    assert memory_share() == int(SHARE * usable_memory())


@pytest.mark.parametrize(("text", "limits"), [("max\n", []), ("1073741824\n", [2**30]), ("", [])])
def test_limits_of_groups(text: str, limits: list[int], tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text(text)
    assert _read_limit(tmp_path / "memory.max") == limits
    assert _read_limit(tmp_path / "absent") == []


def test_the_smallest_limit_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_group_limits", lambda: [2**40, 2**27, 2**30])
    assert usable_memory() == 2**27
