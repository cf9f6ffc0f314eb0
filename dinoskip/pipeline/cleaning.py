"""Remove what a study's current plan does not use, without harm to what a run is at or may continue.

A run says for its whole length that it is at work (a lock of its own below ``running``), and cleaning takes the lock
``cleaning``: each looks for the other after it has said so itself, so they never overlap. Work that was begun and can
be continued (a preempted training, a half export) is unfinished, not unused; it goes only where that is asked for.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from dinoskip.errors import OutputInUse
from dinoskip.io.files import find_below
from dinoskip.io.locks import directory_lock, file_system_time, held_by
from dinoskip.io.output import refuse_link, remove_aside
from dinoskip.io.output import remove as remove_file
from dinoskip.io.output import remove_empty as remove_folder
from dinoskip.pipeline.artifacts import PARTIAL, Artifacts

RUNNING = "running"
_CLEANING = "cleaning"


def remove_empty(place: Path) -> None:
    """Remove a directory, and those above it, as far as they are empty."""
    while place.is_dir() and not any(place.iterdir()):
        remove_folder(place)  # unless another run has just taken it, or one is at work beside it
        if place.exists():
            return
        place = place.parent


def _remove_lock(lock: Path) -> None:
    remove_file(lock)
    remove_empty(lock.parent)


def _sweep_killed(study: Path) -> None:
    """Remove what says of runs that were killed that they are at work; nobody else would before a cleaning."""
    for lock in find_below(study / RUNNING / ".runs", ".lock"):
        if held_by(lock.parent) is None:
            _remove_lock(lock)


@contextmanager
def at_work(study: Path) -> Iterator[None]:
    """Say that a run is at work in this study. :class:`OutputInUse` while something is being removed there."""
    place = study / RUNNING / ".runs" / uuid.uuid4().hex
    with ExitStack() as held:
        held.callback(remove_empty, place)  # after the lock is released
        held.enter_context(directory_lock(place))
        busy = held_by(study / _CLEANING)
        if busy is not None:
            raise OutputInUse(f"{study}: `dinoskip gc` is at work here: {busy.message}", "wait for it")
        _sweep_killed(study)
        yield


@contextmanager
def alone(study: Path) -> Iterator[None]:
    """Hold a study for removing from it. :class:`OutputInUse` while any run, of whatever settings, is at work there."""
    with ExitStack() as held:
        held.callback(remove_empty, study / _CLEANING)
        held.enter_context(directory_lock(study / _CLEANING))
        locks = find_below(study / RUNNING, ".lock")
        for lock in locks:
            busy = held_by(lock.parent)
            if busy is not None:
                raise OutputInUse(f"{study}: a run is at work here: {busy.message}", "let it finish, then remove")
        for lock in locks:  # of killed runs, or damaged
            _remove_lock(lock)
        yield


@dataclass(frozen=True)
class Unfinished:
    """Work that was begun under settings which are not the current ones, or whose output is there by now."""

    path: Path
    seconds: float
    """Since it was last written to."""
    user: str | None
    """The sign that a living run is at it, or None."""


def unfinished(artifacts: Artifacts, continued: set[Path]) -> list[Unfinished]:
    """Partial outputs but those ``continued``, which the current plan would go on with, the oldest first."""
    works = []
    now = file_system_time(artifacts.root) if artifacts.root.is_dir() else 0.0
    for path in find_below(artifacts.root, f"{PARTIAL}*"):
        inside = any(part.startswith(PARTIAL) for part in path.relative_to(artifacts.root).parts[:-1])
        if path.is_dir() and path not in continued and not inside:
            busy = None if path.is_symlink() else held_by(path)
            works.append(Unfinished(path, now - _last_written(path, now), busy.message if busy else None))
    return sorted(works, key=lambda work: -work.seconds)


def _last_written(directory: Path, now: float) -> float:
    """The newest time of all that is in it; ``now``, if a run has published or removed it meanwhile."""
    times = []
    for path in (directory, *find_below(directory, "*")):
        with suppress(OSError):
            times.append(path.lstat().st_mtime)
    return max(times, default=now)


def remove(path: Path) -> None:
    """Remove an output or unfinished work: out of sight by one rename, then for good. Call it inside :func:`alone`.

    Raises :class:`OutputInUse` if a living run holds the directory itself, :class:`ConfigError` for a link.
    """
    refuse_link(path)
    busy = held_by(path)
    if busy is not None:
        raise busy
    remove_aside(path, "removed")
    remove_folder(path.parent)  # unless other outputs of this node are there
