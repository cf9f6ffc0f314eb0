"""One writer a directory: a lock file that names its holder, with a heartbeat and safe take-over.

A holder is known by boot id, PID and time namespace, process id and start time. Only a process of the same boot and the
same namespaces can be looked up in /proc; of any other (another host, another container) the heartbeat decides, which
is the modification time of the lock file. A lock file that cannot be read is held, too, until its heartbeat would be
dead.
"""

from __future__ import annotations

import json
import math
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dinoskip.errors import DataError, OutputInUse, translate_write_errors
from dinoskip.io.files import read_regular
from dinoskip.io.folders import make_folder

HEARTBEAT = 30.0  # seconds between signs of life
STALE = 600.0  # seconds without one after which the lock of a holder that cannot be seen is void
_LONGEST = 4096  # bytes of a lock file
_OURS = re.compile(r"(\.turn)*(\.tmp-[0-9a-f]{12}|(\.now)?\.\d+\.\d+)?")
"""Endings of the names of files that we make beside a lock; the numbers are an earlier version's."""


def _started(pid: int) -> str | None:
    """Return the kernel's start time of a live process (so that a re-used pid is noticed), None if dead.

    A zombie is dead: in a container whose first process waits for nobody it is there for ever.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return None if fields[0] in {"Z", "X"} else fields[19]
    except (OSError, IndexError):
        return None


def _namespace() -> dict[str, str | None]:
    """This machine's boot id and this process's namespaces, None where the system does not tell.

    In another time namespace /proc gives another start time of the same process.
    """
    spaces: dict[str, str | None] = {"boot": None, "pid_namespace": None, "time_namespace": None}
    with suppress(OSError):
        spaces["boot"] = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    for kind in ("pid", "time"):  # time: since Linux 5.6
        with suppress(OSError):
            spaces[f"{kind}_namespace"] = os.readlink(f"/proc/self/ns/{kind}")
    return spaces


def _identity() -> dict[str, Any]:
    return {
        "host": socket.gethostname(),
        **_namespace(),
        "pid": os.getpid(),
        "started": _started(os.getpid()),
        "job": os.environ.get("SLURM_JOB_ID"),
    }


def _read(path: Path) -> bytes | None:
    """The lock file's content, None if there is none; unreadable ones (a folder, a FIFO) are empty."""
    try:
        return read_regular(path, _LONGEST, whole=False)
    except FileNotFoundError:
        return None
    except (OSError, DataError):
        return b""


def _holder(content: bytes) -> dict[str, Any]:
    """Return the holder that a lock's content names; {} if it names none."""
    try:
        holder = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(holder, dict) or type(holder.get("pid")) is not int or holder["pid"] < 1:
        return {}
    return holder


def _is_dead(path: Path, holder: dict[str, Any], now: float) -> bool:
    """Whether the holder of the lock ``path`` is gone; ``now`` is a time of the file system's own clock."""
    here, started = _namespace(), holder.get("started")
    told = None not in (here["boot"], here["pid_namespace"], started)
    # A lock of an earlier version does not name the time namespace.
    if told and all(holder.get(kind, here["time_namespace"]) == namespace for kind, namespace in here.items()):
        return _started(holder["pid"]) != started
    with suppress(OSError):
        return now - path.stat().st_mtime > STALE
    return False  # gone meanwhile: the next try will see


def _refusal(path: Path, holder: dict[str, Any]) -> OutputInUse:
    if not holder:
        return OutputInUse(
            f"{path.parent}: in use: {path.name} is damaged and does not say by whom",
            f"it is void after {STALE:.0f} s without a change; remove it if no run is using this directory",
        )
    job = f", job {holder['job']}" if holder.get("job") else ""
    boot, host = _namespace()["boot"], socket.gethostname()
    if holder.get("host") == host and None not in (boot, holder.get("boot")) and holder["boot"] != boot:
        hint = (
            f"if it ran here it died when this machine was restarted: the lock is void {STALE:.0f} s after its last "
            f"change, or remove it; if it runs in another container named {host}, wait for it or stop it"
        )
    else:
        hint = "wait for it, stop it, or choose another output"
    return OutputInUse(f"{path.parent}: in use by process {holder['pid']} on {holder.get('host')}{job}", hint)


def _acquire(path: Path, content: bytes) -> None:
    # The content is there before the name is: link() fails if the name exists.
    claim = _beside(path)
    for _ in range(20):
        make_folder(path.parent)
        try:
            _write_new(claim, content)
            os.link(claim, path)
            return
        except FileExistsError:
            if (present := _read(path)) is None:  # released just now
                continue
            with suppress(FileNotFoundError):  # swept by one that held the lock and died since
                if not _is_dead(path, _holder(present), claim.stat().st_mtime):
                    raise _refusal(path, _holder(present)) from None
                if _take_over(path, present, claim):
                    return
        except FileNotFoundError:  # the holder before us has just removed the directory
            continue
        finally:
            claim.unlink(missing_ok=True)
        time.sleep(0.05)  # another that takes it over needs some operations on files
    raise OutputInUse(f"{path}: could not be taken over", "remove it if no run is using this directory")


def _take_over(path: Path, dead: bytes, claim: Path) -> bool:
    """Put the file ``claim`` in the place of the lock of a dead holder, if its content still is ``dead``.

    Contenders do so one at a time, under a lock of their own, and the name never vanishes: whoever comes late finds
    the new holder. That lock may itself be of a dead process, and is taken over in the same way.
    """
    turn = path.with_name(f"{path.name}.turn")
    try:
        _acquire(turn, json.dumps(_identity()).encode())
    except OutputInUse:
        return False
    try:
        if _read(path) != dead or not _is_dead(path, _holder(dead), claim.stat().st_mtime):
            return False
        with suppress(FileNotFoundError):  # swept by one that held the lock and died since
            os.replace(claim, path)
            return True
        return False
    finally:
        turn.unlink(missing_ok=True)


def _sweep(path: Path) -> None:
    """Remove what killed contenders left beside the lock that is held now; a living one begins its file again."""
    for left in path.parent.glob(f"{path.name}.*"):
        if _OURS.fullmatch(left.name.removeprefix(path.name)):
            left.unlink(missing_ok=True)


def _beside(path: Path) -> Path:
    """A name beside a lock that nobody can know before, and put a link at."""
    return path.with_name(f"{path.name}.tmp-{secrets.token_hex(6)}")


def _write_new(path: Path, content: bytes = b"") -> os.stat_result:
    """Write a file at a name where nothing is, not even a link; what the system says of it."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    with open(handle, "wb") as stream:
        stream.write(content)
        stream.flush()
        return os.fstat(stream.fileno())


def file_system_time(directory: Path) -> float:
    """Return now by the clock that dates the files of ``directory``, in seconds since 1970.

    It is not this machine's on a network file system, and heartbeats are dated by it. Raises :class:`OSError` where
    nothing can be written.
    """
    probe = _beside(directory / ".lock")  # a later holder sweeps it if we are killed
    try:
        return _write_new(probe).st_mtime
    finally:
        probe.unlink(missing_ok=True)


def held_by(directory: Path) -> OutputInUse | None:
    """Return the error that :func:`directory_lock` would raise now; None if no living run holds the directory.

    Where nothing can be written, so that the file system's time is not known, a holder that cannot be seen counts as
    living.
    """
    holder = holder_of(directory)
    return None if holder is None else _refusal(Path(directory) / ".lock", holder)


def holder_of(directory: Path) -> dict[str, Any] | None:
    """Return the directory's holder: host, pid and job, {} if the lock does not name it; None as in :func:`held_by`."""
    path = Path(directory) / ".lock"
    present = _read(path)
    if present is None:
        return None
    try:
        now = file_system_time(path.parent)
    except OSError:
        now = -math.inf
    return None if _is_dead(path, _holder(present), now) else _holder(present)


@dataclass(frozen=True)
class DirectoryLock:
    """A lock that this process holds on ``directory``."""

    directory: Path
    content: bytes

    def check(self) -> None:
        """:class:`OutputInUse` (exit 5) if the directory is not the one that was locked any more.

        It was removed, replaced, or taken over by another run while this process was stopped. To be called before
        anything is published: what was written there since is lost, and must not look complete.
        """
        if _read(self.directory / ".lock") != self.content:
            raise OutputInUse(
                f"{self.directory}: not the directory that this run locked: it was removed, replaced or taken over",
                "what it wrote there is lost; run the same command again",
            )


@contextmanager
def directory_lock(directory: Path) -> Iterator[DirectoryLock]:
    """Hold ``directory/.lock`` for the block. Raises :class:`OutputInUse` (exit 5) if a living run holds it."""
    path = Path(directory) / ".lock"
    lock = DirectoryLock(path.parent, json.dumps(_identity()).encode())
    stop, owner = threading.Event(), os.getpid()

    def beat() -> None:
        while not stop.wait(HEARTBEAT):
            with suppress(OSError):
                os.utime(path)

    with translate_write_errors(path):
        _acquire(path, lock.content)
    try:
        with translate_write_errors(path):
            _sweep(path)
        threading.Thread(target=beat, name="lock-heartbeat", daemon=True).start()
        yield lock
    finally:
        stop.set()
        # What cannot be removed (a disk that is read-only by now) hides no error of the block, and is void without us.
        with suppress(OSError):
            if os.getpid() == owner and _read(path) == lock.content:
                path.unlink()
