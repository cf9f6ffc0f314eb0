"""One writer a directory: a lock file that names its holder, with a heartbeat and safe take-over."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dinoskip.errors import OutputInUse, translate_write_errors

HEARTBEAT = 30.0  # seconds between signs of life
STALE = 600.0  # seconds without one after which another host's lock is void


def _started(pid: int) -> str | None:
    """Return the kernel's start time of a live process (so that a re-used pid is noticed), None if dead.

    A zombie is dead: in a container whose first process waits for nobody it is there for ever.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return None if fields[0] in {"Z", "X"} else fields[19]
    except (OSError, IndexError):
        return None


def _identity() -> dict[str, Any]:
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "started": _started(os.getpid()),
        "job": os.environ.get("SLURM_JOB_ID"),
    }


def _is_stale(path: Path, holder: dict[str, Any]) -> bool:
    if holder.get("host") == socket.gethostname():
        started = _started(int(holder.get("pid", -1)))
        return started is None or started != holder.get("started")
    with suppress(OSError):
        return time.time() - path.stat().st_mtime > STALE
    return True


def _read(path: Path) -> dict[str, Any] | None:
    """Who holds the lock; None if there is none, empty if the file says nothing that can be read."""
    try:
        holder = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        return {}
    return holder if isinstance(holder, dict) else {}


def _acquire(path: Path) -> None:
    content = json.dumps(_identity())
    # The content is there before the name is: link() fails if the name exists.
    mine = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
    for _ in range(20):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            mine.write_text(content)
            os.link(mine, path)
            return
        except FileExistsError:
            if (holder := _read(path)) is None:  # released just now
                continue
            if holder and not _is_stale(path, holder):
                job = f", job {holder['job']}" if holder.get("job") else ""
                raise OutputInUse(
                    f"{path.parent}: in use by process {holder.get('pid')} on {holder.get('host')}{job}",
                    "wait for it, stop it, or choose another output",
                ) from None
            if _take_over(path, holder, mine):
                return
        except FileNotFoundError:  # the holder before us has just removed the directory
            continue
        finally:
            mine.unlink(missing_ok=True)
        time.sleep(0.05)
    raise OutputInUse(f"{path}: could not be taken over", "remove it if no run is using this directory")


def _take_over(path: Path, holder: dict[str, Any], mine: Path) -> bool:
    """Put ``mine`` in the place of the lock of a dead ``holder``, if it still is that one.

    Contenders do so one at a time, under a lock of their own, and the name never vanishes: whoever comes late finds
    the new holder. That lock may itself be of a dead process, and is taken over in the same way.
    """
    turn = path.with_name(f"{path.name}.turn")
    try:
        _acquire(turn)
    except OutputInUse:
        return False
    try:
        if _read(path) != holder:
            return False
        with suppress(FileNotFoundError):  # swept by one that held the lock and died since
            os.replace(mine, path)
            return True
        return False
    finally:
        turn.unlink(missing_ok=True)


def _sweep(path: Path) -> None:
    """Remove what killed contenders left beside the lock that is held now; a living one begins its file again."""
    for left in path.parent.glob(f"{path.name}.*"):
        left.unlink(missing_ok=True)


@contextmanager
def directory_lock(directory: Path) -> Iterator[None]:
    """Hold ``directory/.lock`` for the block. Raises :class:`OutputInUse` (exit 5) if a living run holds it."""
    path = Path(directory) / ".lock"
    with translate_write_errors(path):
        _acquire(path)
        _sweep(path)
    stop = threading.Event()

    def beat() -> None:
        while not stop.wait(HEARTBEAT):
            with suppress(OSError):
                os.utime(path)

    owner, mine = os.getpid(), _identity()
    threading.Thread(target=beat, name="lock-heartbeat", daemon=True).start()
    try:
        yield
    finally:
        stop.set()
        if os.getpid() == owner and _read(path) == mine:
            path.unlink(missing_ok=True)
