"""What a run with several workers says of itself while it works: ``logs/run.json``, and a log for each node."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dinoskip.errors import DataError
from dinoskip.io.files import read_json, write_json

LOGS = "logs"
STATE = "run.json"
EVERY = 5.0  # seconds between writes where no node began or ended


@dataclass(frozen=True)
class RunState:
    """One moment of a run: its leader, its engine, the nodes that workers are at, and about how long the rest takes.

    ``running`` has of each node since when (seconds since 1970), in which try, and its worker's host and process.
    ``ended``: the leader has let its workers go.
    """

    engine: str
    workers: int
    running: dict[str, dict[str, Any]]
    ready: int
    done: int
    left: int
    failed: dict[str, str]
    seconds_left: float | None
    host: str = ""
    pid: int = 0
    updated: float = 0.0
    ended: bool = False

    def write(self, study: Path) -> None:
        """Put it in the study's folder, with this process as the leader."""
        now = {**asdict(self), "host": socket.gethostname(), "pid": os.getpid(), "updated": time.time()}
        write_json(study / LOGS / STATE, now)


def read_state(study: Path) -> RunState | None:
    """The last state that a run has written; None if there is none, or none that this version knows."""
    path = study / LOGS / STATE
    if not path.is_file():
        return None
    try:
        return RunState(**read_json(path))
    except (DataError, TypeError):
        return None


def log_of(study: Path, node: str) -> Path:
    """The log of a node that a worker made."""
    return study / LOGS / f"{node}.log"
