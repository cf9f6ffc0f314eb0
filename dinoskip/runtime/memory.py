"""Memory that this process may use: the machine's, or its control group's where that is less."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

SHARE = 0.5
"""Share of :func:`usable_memory` that graphs of tokens may take together. The rest is for the network's activations,
images that are read ahead, and other processes; it is the share that images decoded into memory may take, too."""
_GROUPS = Path("/sys/fs/cgroup")
_UNKNOWN = 8 * 2**30  # where the system does not say: what a small laptop has


def usable_memory() -> int:
    """Bytes of this machine's memory, or of the smallest limit of the control groups (SLURM, containers) around it."""
    try:
        physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        physical = _UNKNOWN
    return min([physical, *_group_limits()])


def memory_share() -> int:
    """Bytes that graphs of tokens may take together: :data:`SHARE` of :func:`usable_memory`."""
    return int(SHARE * usable_memory())


@cache  # read once a process: each time takes as long as a tenth of a small cut
def _group_limits() -> tuple[int, ...]:
    """Limits in bytes of this process's control group and of those that it lies in, where the system has any."""
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ()
    limits: list[int] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":  # version 2
            root, name = _GROUPS, "memory.max"
        elif "memory" in controllers.split(","):
            root, name = _GROUPS / "memory", "memory.limit_in_bytes"
        else:
            continue
        inner = root / path.lstrip("/")
        for folder in (inner, *inner.parents):
            if folder == root.parent:
                break
            limits += _read_limit(folder / name)
    return tuple(limits)


def _read_limit(path: Path) -> list[int]:
    """The number in a file, if there is one; ``max`` is no limit."""
    try:
        return [int(path.read_text(encoding="utf-8"))]
    except (OSError, ValueError):
        return []
