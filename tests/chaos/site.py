"""The disturbed study's disk, and the processes that work on it.

Where mounting is allowed the disk is a tmpfs of its own, so that full, without inodes and read-only are the kernel's
own errors; elsewhere it is a folder, and a full disk is a limit on the size of files (RLIMIT_FSIZE).
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from tests.helpers.study import TINY
from tests.helpers.system import can_mount, remount, small_disk, wait_until_empty

ROOT = Path(__file__).parents[2]
DISK = 512 << 20  # bytes; a finished study takes 50 MB
OVERRIDES = ("pretrain.checkpoint_every_steps=1", "pretrain.epochs=3")
ORPHANS = 20.0  # seconds in which data workers notice that their parent is gone
BALLAST = "ballast"


class Running:
    """A command in a session of its own, its output in a file."""

    def __init__(self, command: Sequence[str], log: Path, environment: dict[str, str], cwd: Path) -> None:
        self.command, self._path, self.began = list(command), log, time.monotonic()
        with open(log, "wb") as stream:
            self.process = subprocess.Popen(
                self.command, stdout=stream, stderr=stream, env=environment, cwd=cwd, start_new_session=True
            )

    @property
    def log(self) -> str:
        return self._path.read_text(errors="replace")

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def signal(self, number: int) -> None:
        """Send a signal to the process alone; nothing if it has ended."""
        with suppress(ProcessLookupError):
            self.process.send_signal(number)

    def wait_for(self, path: Path, seconds: float) -> None:
        """Wait until ``path`` is there, the process has ended, or ``seconds`` have passed."""
        end = time.monotonic() + seconds
        while not path.exists() and self.alive and time.monotonic() < end:
            time.sleep(0.005)

    def end(self, seconds: float) -> tuple[int, list[str]]:
        """Wait for the end; the exit code and what is wrong with the way it ended."""
        wrong = []
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGABRT)  # Python's fault handler says where it hangs
            wrong.append(f"still running after {seconds:.0f} s")
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(10)
        if wrong or wait_until_empty(self.process.pid, ORPHANS):
            wrong = wrong or ["processes are left behind"]
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        return self.process.wait(60), wrong


class Site:
    """One study below ``out/disk``, with what is needed to run it and to take room away from it."""

    def __init__(self, out: Path) -> None:
        self.out, self.disk, self.mounted = out, out / "disk", can_mount()
        self.config, self._count = out / "tiny.yaml", 0
        self._scratch = out / "scratch"
        shutil.rmtree(self.disk, ignore_errors=True)
        for folder in (self.disk, self._scratch):
            folder.mkdir(parents=True, exist_ok=True)
        self.config.write_text(TINY)
        if self.mounted:
            small_disk(self.disk, DISK)

    @property
    def study(self) -> Path:
        return self.disk / "tiny"

    def command(self, name: str, *options: str, output: Path | None = None) -> list[str]:
        """``dinoskip NAME`` on the study."""
        where = f"output={output or self.disk}"
        return [sys.executable, "-m", "dinoskip", name, str(self.config), where, *OVERRIDES, *options]

    def start(
        self, command: Sequence[str], *, before: Sequence[str] = (), environment: dict[str, str] | None = None
    ) -> Running:
        """Start a command; ``before`` stands in front of it (``unshare ...``)."""
        self._count += 1
        scratch = self._scratch / str(self._count % 8)
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        added = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1", "TMPDIR": str(scratch)}
        log = self._scratch / f"log-{self._count % 8}"
        return Running([*before, *command], log, os.environ | added | (environment or {}), scratch)

    # --- what a disk can be short of ------------------------------------------------------------------

    def fill(self, free: int, running: Running) -> str:
        """Leave ``free`` bytes on the disk, or let no file of the process grow beyond them."""
        if not self.mounted:
            resource.prlimit(running.process.pid, resource.RLIMIT_FSIZE, (free, free))
            return f"no file beyond {free} bytes (RLIMIT_FSIZE)"
        with open(self.disk / BALLAST, "wb") as stream:

            def take() -> None:  # fails where the run has taken some of the room meanwhile
                os.posix_fallocate(stream.fileno(), 0, max(shutil.disk_usage(self.disk).free - free, 1))

            return f"{free} bytes left on a tmpfs{'' if _within(5, take) else ', at most'}"

    def take_inodes(self, left: int) -> str:
        """Let at most ``left`` more files be made (tmpfs only)."""
        state = os.statvfs(self.disk)
        remount(self.disk, f"nr_inodes={state.f_files - state.f_ffree + left}")
        return f"{left} inodes left on a tmpfs"

    def make_read_only(self, seconds: float) -> bool:
        """Make the disk read-only; whether that came about, for it must wait until no file is open for writing."""
        return _within(seconds, lambda: remount(self.disk, "", read_only=True))

    def give_back(self) -> None:
        """Undo all of the above."""
        if self.mounted:
            remount(self.disk, "nr_inodes=1000000")
        (self.disk / BALLAST).unlink(missing_ok=True)


def _within(seconds: float, call: Callable[[], None]) -> bool:
    end = time.monotonic() + seconds
    while True:
        try:
            call()
        except OSError:
            if time.monotonic() > end:
                return False
            time.sleep(0.001)
        else:
            return True
