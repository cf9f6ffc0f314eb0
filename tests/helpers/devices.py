"""Tests on every device: the CPU by default, a GPU with ``-m gpu``; what a device waits for and keeps in memory."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from tests.helpers.pretended_device import PretendedDevice

DEVICES: list[Any] = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
"""Values of a parameter ``device``."""
# cuBLAS reads it at its first product in a process; without it deterministic algorithms refuse products.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


@contextmanager
def deterministic() -> Iterator[None]:
    """Inside, an operation that gives other bits each time, as some do on a GPU, is refused."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def waits(device: str, make: Callable[[torch.device], Callable[[], object]]) -> int:
    """Return how often a call waits for the device.

    ``make`` prepares the call on the device, and its result is called. A GPU reports its waits itself (its sync debug
    mode); for a CPU the pretended device counts them.
    """
    if device == "cpu":
        with PretendedDevice() as pretended:
            action = make(pretended.device)
            with pretended.counting() as counts:
                action()
        return counts.waits
    action = make(torch.device(device))
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            action()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    lines = Counter(f"{w.filename}:{w.lineno}" for w in said if "synchroniz" in str(w.message))
    print(*lines.items(), sep="\n")
    return lines.total()


def peak_bytes(device: str, action: Callable[[], object]) -> int:
    """Most bytes of tensors that lay on the device during a call, beyond those that lay there before."""
    if device != "cpu":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        action()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        action()
        action()  # what the first one left, and this one frees, is known to the profiler
    level = peak = 0
    result: Any = profile.profiler
    for event in sorted(result.kineto_results.events(), key=lambda one: one.start_ns()):
        if event.name() == "[memory]":
            level += event.nbytes()
            peak = max(peak, level)
    return peak
