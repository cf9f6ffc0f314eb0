"""Number of processor cores that this process may use, on every system."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_counted: ContextVar[int | None] = ContextVar("counted", default=None)


def available_cores() -> int:
    """Cores that this process may run on, at least 1: those of its affinity where the system has one, else all.

    Linux and Python 3.13 know the affinity (SLURM and containers set it); macOS before Python 3.13 knows all cores
    alone.
    """
    if (counted := _counted.get()) is not None:
        return counted
    by_process: Callable[[], int | None] | None = getattr(os, "process_cpu_count", None)  # Python 3.13
    if by_process is not None:
        return by_process() or 1
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def cores_counted_as(cores: int | None) -> Iterator[None]:
    """:func:`available_cores` in the block are ``cores`` (None: as they are): to estimate what a worker will do."""
    token = _counted.set(cores)
    try:
        yield
    finally:
        _counted.reset(token)
