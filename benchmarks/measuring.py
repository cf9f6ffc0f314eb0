"""Time and memory of a call, of this process alone: other work on the machine does not count."""

from __future__ import annotations

import ctypes
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path


def seconds(function: Callable[[], object]) -> float:
    """Processor seconds of a call, of all threads."""
    began = time.process_time()
    function()
    return time.process_time() - began


def least_seconds(function: Callable[[], object], repeats: int = 5) -> float:
    """The least of :func:`seconds` over ``repeats`` calls, after one to warm up."""
    function()
    return min(seconds(function) for _ in range(repeats))


def compare(
    fast: Callable[[], object], slow: Callable[[], object], repeats: int, times: int = 5
) -> tuple[float, float, float]:
    """Return (median ratio, fast seconds, slow seconds): a slow call against the median of fast ones beside it."""
    rows = []
    for _ in range(repeats):
        taken = statistics.median(seconds(fast) for _ in range(times))
        rows.append((seconds(slow) / taken, taken))
    ratio, taken = (statistics.median(column) for column in zip(*rows, strict=True))
    return ratio, taken, ratio * taken


def largest(read: Callable[[], int], every: float, function: Callable[[], object]) -> int:
    """Return the largest number that ``read`` gives while ``function`` runs, asked ``every`` so many seconds."""
    most, over = read(), threading.Event()

    def watch() -> None:
        nonlocal most
        while not over.wait(every):
            most = max(most, read())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        function()
    finally:
        over.set()
        watcher.join()
    return max(most, read())


def anonymous() -> int:
    """Return the bytes of memory of this process that no file is behind."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


def peak(function: Callable[[], object]) -> int:
    """Return the most of :func:`anonymous` while ``function`` runs, every 10 ms, less what there was before."""
    ctypes.CDLL(None).malloc_trim(0)  # freed memory goes back to the system, so that using it again shows
    before = anonymous()
    return largest(anonymous, 0.01, function) - before
