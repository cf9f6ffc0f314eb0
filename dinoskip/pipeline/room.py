"""Room on the disk that a worker in another process asks of the leader of its run: two small files beside its lock.

The leader alone knows which stores are used up and what the others were given. A worker writes how many bytes it wants
and waits for the answer: granted, or refused with the leader's reason.
"""

from __future__ import annotations

import time
from pathlib import Path

from dinoskip.errors import DataError, DiskFull
from dinoskip.io.files import read_json, write_json
from dinoskip.io.output import remove
from dinoskip.pipeline.cleaning import RUNNING

ASKED, ANSWERED = "room.json", "room-answer.json"
POLL = 0.2  # seconds between looks for an answer


def ask_room(study: Path, node: str, nbytes: int) -> None:
    """Wait until the leader has given ``nbytes`` to the node, whose lock this process holds; :class:`DiskFull` if not.

    Both files are gone at its end, so that the folder of the lock can go.
    """
    place = study / RUNNING / node
    try:
        write_json(place / ASKED, {"bytes": nbytes})
        while not (place / ANSWERED).is_file():
            time.sleep(POLL)
        said = read_json(place / ANSWERED)
    finally:
        for name in (ASKED, ANSWERED):
            if (place / name).exists():
                remove(place / name)
    if said["refused"] is not None:
        raise DiskFull(said["refused"], said["hint"])


def wanted_room(study: Path, node: str) -> int | None:
    """Return the number of bytes that the node's worker asks for and has no answer to; None if it does not ask."""
    place = study / RUNNING / node
    if not (place / ASKED).is_file() or (place / ANSWERED).exists():
        return None
    try:
        return int(read_json(place / ASKED)["bytes"])
    except (DataError, KeyError, TypeError, ValueError):
        return None


def answer(study: Path, node: str, refused: DiskFull | None) -> None:
    """Give the node's worker what it asked for, or refuse it with a reason."""
    said = {"refused": None, "hint": None} if refused is None else {"refused": refused.message, "hint": refused.hint}
    write_json(study / RUNNING / node / ANSWERED, said)
