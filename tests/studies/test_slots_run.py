"""Pieces under a deadline: done once, cut and said, continued by a second call."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from studies import slots_run
from studies.slots_run import Deadline, Piece, Progress, age, limited, run_pieces


def piece(name: str, code: str, limit: float = 600.0, least: float = 0.0) -> Piece:
    return Piece(name, ("-c", code), limit, least, f"what {name} makes")


def test_pieces_are_done_once_and_what_does_not_fit_is_said(tmp_path: Path) -> None:
    marker, progress = tmp_path / "marker", Progress(tmp_path / "progress.json")
    write = f"open({str(marker)!r}, 'a').write('x')"
    pieces = [piece("first", write), piece("fails", "raise SystemExit(4)"), piece("long", write, least=10_000)]
    missing = run_pieces(pieces, Deadline(1000 + age()), progress, tmp_path / "log")
    assert [line.partition(":")[0] for line in missing] == ["fails", "long"]
    assert "exit code 4" in missing[0]
    assert "cut: " in missing[1]
    assert "what long makes" in missing[1]
    again = Progress(tmp_path / "progress.json")
    assert again.states["first"]["state"] == "done"
    run_pieces([pieces[0], piece("fails", write)], Deadline(1000 + age()), again, tmp_path / "log")
    assert marker.read_text() == "xx", "first is not run again, the failed one is"
    assert again.states["fails"]["state"] == "done"


@pytest.mark.slow  # a frozen script
def test_a_command_is_asked_to_stop_before_it_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots_run, "GRACE", 1.5)
    polite = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(75)); print('ready'); time.sleep(60)"
    deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(60)"
    for code in (polite, deaf):
        began = time.monotonic()
        assert limited(("-c", code), 3.0, tmp_path / "log") == "cut at its limit"
        assert time.monotonic() - began < 20
    assert "ready" in (tmp_path / "log").read_text()


def test_a_run_that_says_it_can_go_on_was_cut(tmp_path: Path) -> None:
    assert limited(("-c", f"raise SystemExit({slots_run.ENDED})"), 60, tmp_path / "log") == "cut at its limit"


def test_a_deadline_counts_from_the_start_of_the_process() -> None:
    assert 0 < age() < 1e6
    assert Deadline(1e6).left < 1e6 - age() + 1
    assert sys.executable
