"""Tools of every part of the kit: the device, times by events, results that are written at once."""

from __future__ import annotations

import gc
import shutil
import statistics
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.lines import append, shown

ROOT = Path(__file__).resolve().parents[2]
_ROOM = 24 << 30  # bytes free in memory from which files go there: the export part writes up to 5 GB, twice


@dataclass(frozen=True)
class Kit:
    """A part that runs: its name, where its lines go, the seconds that it has and when it began (``time.time``).

    ``tiny``: sizes for a CPU, and two repeats of everything.
    """

    part: str
    out: Path
    seconds: float
    began: float
    tiny: bool
    device: torch.device

    @property
    def cuda(self) -> bool:
        """Whether it runs on a GPU."""
        return self.device.type == "cuda"

    def left(self) -> float:
        """Seconds that this part still has."""
        return self.seconds - (time.time() - self.began)

    def has(self, seconds: float) -> bool:
        """Whether something that takes so many seconds still fits; at tiny sizes it always does."""
        return self.tiny or self.left() > seconds

    def say(self, name: str, **values: Any) -> None:
        """Write a result, at once."""
        row = {"part": self.part, "name": name, "t": round(time.time() - self.began, 1), **values}
        append(self.out, row)
        told = ", ".join(f"{key}={shown(value)}" for key, value in values.items())
        print(f"[{self.part} {row['t']:6.1f}] {name}: {told}"[:400], flush=True)

    @contextmanager
    def attempt(self, name: str) -> Iterator[None]:
        """A measurement that may fail without ending the part; what failed is written."""
        try:
            yield
        except Exception as error:  # whatever it is: the measurements after it are worth having
            where = traceback.format_exc().splitlines()[-3:]
            self.say(name, failed=f"{type(error).__name__}: {str(error)[:300]}", where=where)

    def sync(self) -> None:
        """Wait for the device."""
        if self.cuda:
            torch.cuda.synchronize()

    def ms(self, action: Callable[[], object], repeats: int = 10, warm: int = 3) -> float:
        """Median milliseconds of a call, by an event before and after each; on a CPU by the clock."""
        repeats, warm = (2, 1) if self.tiny else (repeats, warm)
        for _ in range(warm):
            action()
        self.sync()
        if not self.cuda:
            return statistics.median(_clocked(action) for _ in range(repeats))
        marks = [(_event(), _event()) for _ in range(repeats)]
        for start, end in marks:
            start.record()
            action()
            end.record()
        self.sync()
        return float(statistics.median(start.elapsed_time(end) for start, end in marks))

    def wall_ms(self, action: Callable[[], object], repeats: int = 10, warm: int = 3) -> float:
        """Mean milliseconds of calls that follow one another without a wait: what a loop gets."""
        repeats, warm = (2, 1) if self.tiny else (repeats, warm)
        for _ in range(warm):
            action()
        self.sync()
        began = time.perf_counter()
        for _ in range(repeats):
            action()
        self.sync()
        return 1e3 * (time.perf_counter() - began) / repeats

    def taken(self, action: Callable[[], Any]) -> tuple[float, Any]:
        """Seconds of one call, waits for the device included, and what it returns."""
        self.sync()
        began = time.perf_counter()
        value = action()
        self.sync()
        return time.perf_counter() - began, value

    def fresh(self) -> None:
        """Free what is not used, and forget the peak of memory."""
        gc.collect()
        if self.cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def peak_gib(self) -> float:
        """Most memory allocated since :meth:`fresh`; 0 on a CPU."""
        return torch.cuda.max_memory_allocated() / 2**30 if self.cuda else 0.0

    @contextmanager
    def waits(self, name: str) -> Iterator[None]:
        """Count by line of the project where the host waited for the device (torch's sync debug mode)."""
        if not self.cuda:
            yield
            return
        seen: Counter[str] = Counter()
        before = warnings.showwarning

        def note(message: Any, *_: Any, **__: Any) -> None:
            if "synchron" in str(message):
                seen[_line_of_project()] += 1

        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = note
            torch.cuda.set_sync_debug_mode("warn")
            try:
                yield
            finally:
                torch.cuda.set_sync_debug_mode("default")
                warnings.showwarning = before
        self.say(f"host waits, {name}", total=sum(seen.values()), lines=dict(seen.most_common(8)))

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """A folder for files, in memory where that has room, removed afterwards."""
        memory = Path("/dev/shm")
        roomy = self.cuda and memory.is_dir() and shutil.disk_usage(memory).free > _ROOM
        with tempfile.TemporaryDirectory(dir=memory if roomy else None, ignore_cleanup_errors=True) as folder:
            yield Path(folder)

    def command(self, *arguments: str) -> list[str]:
        """A command of this Python."""
        return [sys.executable, *arguments]


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _clocked(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return 1e3 * (time.perf_counter() - began)


def _line_of_project() -> str:
    """The innermost line on the stack that is the project's own and not this file's."""
    for frame in reversed(traceback.extract_stack()):
        path = Path(frame.filename)
        if path.is_relative_to(ROOT) and "site-packages" not in path.parts and path != Path(__file__).resolve():
            return f"{path.relative_to(ROOT)}:{frame.lineno}"
    return "elsewhere"
