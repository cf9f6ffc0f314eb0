"""Commands under a deadline: each has a limit, is asked to stop first, and what did not fit is said."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dinoskip.io.files import read_json, write_json
from dinoskip.runtime.console import log

GRACE = 15.0
"""Seconds between asking a command to stop and ending it: a training writes its checkpoint first."""
ENDED = 75  # exit code of a run that was asked to stop and can be continued


@dataclass(frozen=True)
class Piece:
    """One command of a slot, as arguments of this Python.

    It gets ``limit`` seconds at most and is not begun with fewer than ``least``. ``lost`` says what is missing where it
    did not run.
    """

    name: str
    arguments: tuple[str, ...]
    limit: float
    least: float
    lost: str


class Deadline:
    """Seconds that are left of so many since this process began: importing torch is a part of a slot, too."""

    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds - age()

    @property
    def left(self) -> float:
        """Seconds that are left; below 0 afterwards."""
        return self.end - time.monotonic()


def age() -> float:
    """Seconds since this process was started, by Linux."""
    ticks = float(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return float(Path("/proc/uptime").read_text().split()[0]) - ticks / os.sysconf("SC_CLK_TCK")


class Progress:
    """States of the pieces, in a file of the working folder: a second call goes on with the missing ones."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.states: dict[str, dict[str, Any]] = read_json(path) if path.is_file() else {}

    def done(self, name: str) -> bool:
        """Whether a piece has been finished."""
        return self.states.get(name, {}).get("state") == "done"

    def note(self, name: str, state: str, seconds: float) -> None:
        """Write what became of a piece; its seconds are those of all calls together."""
        before = self.states.get(name, {}).get("seconds", 0.0)
        self.states[name] = {"state": state, "seconds": round(before + seconds, 1)}
        write_json(self.path, self.states)


def run_pieces(pieces: Sequence[Piece], deadline: Deadline, progress: Progress, log_file: Path) -> list[str]:
    """Run what is not done yet, in order; return a line for each piece that is not done afterwards."""
    missing = []
    for piece in pieces:
        if progress.done(piece.name):
            continue
        if deadline.left < piece.least:
            state, seconds = f"cut: {max(0.0, deadline.left):.0f} s were left, {piece.least:.0f} needed", 0.0
        else:
            began = time.monotonic()
            state = limited(piece.arguments, min(piece.limit, deadline.left), log_file)
            seconds = time.monotonic() - began
        progress.note(piece.name, state, seconds)
        log.info("slot: %s: %s, %.0f s", piece.name, state, seconds)
        if state != "done":
            missing.append(f"{piece.name}: {state}: without {piece.lost}")
    return missing


def limited(arguments: Sequence[str], seconds: float, log_file: Path) -> str:
    """Run this Python with these arguments; return ``done``, ``cut at its limit`` or the exit code.

    The command is asked to stop (SIGTERM) :data:`GRACE` seconds, or half of what there is, before ``seconds`` are over;
    with all that it started it is ended (SIGKILL) after that.
    """
    grace = min(GRACE, seconds / 2)
    with log_file.open("a") as stream:
        stream.write(f"== {' '.join(arguments)}\n")
        stream.flush()
        child = subprocess.Popen(
            [sys.executable, *arguments], stdout=stream, stderr=subprocess.STDOUT, start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
        try:
            code = child.wait(timeout=seconds - grace)
        except subprocess.TimeoutExpired:
            child.terminate()
            try:
                child.wait(timeout=grace)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
            return "cut at its limit"
    return {0: "done", ENDED: "cut at its limit"}.get(code, f"exit code {code}")
