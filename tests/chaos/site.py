"""The disturbed study's disk, and the processes that work on it.

Where mounting is allowed the disk is a tmpfs of its own, so that full, without inodes and read-only are the kernel's
own errors; elsewhere it is a folder, and a full disk is a limit on the size of files (RLIMIT_FSIZE).
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from dinoskip.runtime.provenance import EPOCH
from tests.chaos.works import CONFIG, Work, write_photographs
from tests.helpers.launch import rank_environments
from tests.helpers.system import can_mount, remount, small_disk, wait_until_empty

ROOT = Path(__file__).parents[2]
DISK = 512 << 20  # bytes; a finished study takes 50 MB
ORPHANS = 20.0  # seconds in which data workers notice that their parent is gone
BALLAST = "ballast"
LAUNCHER = 60.0  # seconds that ranks have to end by themselves once one has, before they are ended as torchrun does
Process = subprocess.Popen[bytes]
Change = Callable[[int, list[str]], list[str]]  # of a rank and its command line


class Running:
    """A command for each rank, in a session of its own, their output in files; ``process`` is rank 0."""

    def __init__(
        self, commands: Sequence[Sequence[str]], log: Path, environments: Sequence[dict[str, str]], cwd: Path
    ) -> None:
        self.environments = environments
        self._paths = [log.with_name(f"{log.name}-{rank}") for rank in range(len(environments))]
        starts = zip(commands, self._paths, environments, strict=True)
        self.processes = [self._started(*one, cwd) for one in starts]
        self.process = self.processes[0]
        self.ended_by_launcher = False

    def _started(self, command: Sequence[str], log: Path, environment: dict[str, str], cwd: Path) -> Process:
        with open(log, "wb") as stream:
            return subprocess.Popen(
                list(command), stdout=stream, stderr=stream, env=environment, cwd=cwd, start_new_session=True
            )

    @property
    def log(self) -> str:
        return "".join(path.read_text(errors="replace") for path in self._paths)

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def signal(self, number: int, rank: int = 0) -> None:
        """Send a signal to a rank's process alone; nothing if it has ended."""
        with suppress(ProcessLookupError):
            self.processes[rank].send_signal(number)

    def wait_for(self, path: Path, seconds: float) -> None:
        """Wait until ``path`` is there, the process has ended, or ``seconds`` have passed."""
        end = time.monotonic() + seconds
        while not path.exists() and self.alive and time.monotonic() < end:
            time.sleep(0.005)

    def _wait(self, until: float, *, all_of_them: bool = False) -> bool:
        """Wait until one rank, or all, have ended; whether they have."""
        while True:
            ended = [process.poll() is not None for process in self.processes]
            if all(ended) or (any(ended) and not all_of_them):
                return True
            if time.monotonic() > until:
                return False
            time.sleep(0.02)

    def end(self, seconds: float) -> tuple[int, list[str]]:
        """Wait for the end; the exit code of rank 0 and what is wrong with the way they ended."""
        wrong, until = [], time.monotonic() + seconds
        self._wait(until)
        if any(process.poll() is not None for process in self.processes) and not self._wait(
            min(until, time.monotonic() + LAUNCHER), all_of_them=True
        ):
            self.ended_by_launcher = True
            for number in (signal.SIGTERM, signal.SIGKILL):
                for rank in range(len(self.processes)):
                    self.signal(number, rank)
                self._wait(time.monotonic() + 10, all_of_them=True)
        for rank, process in enumerate(self.processes):
            if process.poll() is None:
                self.signal(signal.SIGABRT, rank)  # Python's fault handler says where it hangs
                wrong.append(f"rank {rank} still running after {seconds:.0f} s")
                with suppress(subprocess.TimeoutExpired):
                    process.wait(10)
        for process in self.processes:
            if wrong or wait_until_empty(process.pid, ORPHANS):
                wrong = wrong or ["processes are left behind"]
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            process.wait(60)
        return int(self.process.returncode), wrong


class Site:
    """One work below ``out/disk``, with what is needed to run it and to take room away from it."""

    def __init__(self, out: Path, work: Work) -> None:
        self.out, self.disk, self.mounted, self.work = out, out / "disk", can_mount(), work
        self.config, self.data, self._count = out / "tiny.yaml", out / "data", 0
        self._scratch = out / "scratch"
        self.places: list[tuple[str, bool]] = []  # names below the disk that a run uses; see places_of
        shutil.rmtree(self.disk, ignore_errors=True)
        for folder in (self.disk, self._scratch):
            folder.mkdir(parents=True, exist_ok=True)
        self.write_data()
        self.config.write_text(CONFIG.replace("DATA", str(self.data)))
        if self.mounted:
            small_disk(self.disk, DISK)

    @property
    def study(self) -> Path:
        return self.disk / "tiny"

    @property
    def is_study(self) -> bool:
        """Whether the work is one that ``status``, ``plan`` and ``gc`` know."""
        return self.work.words[0] == "run"

    def write_data(self) -> None:
        """The photographs outside the disk, whole again."""
        shutil.rmtree(self.data, ignore_errors=True)
        write_photographs(self.data)

    def words(self, *options: str, disk: Path | None = None) -> list[str]:
        """The work's command line."""
        disk = disk or self.disk
        places = {"config": self.config, "data": self.data, "disk": disk, "out": disk / "tiny"}
        words = [re.sub(r"{(config|data|disk|out)}", lambda one: str(places[one[1]]), word) for word in self.work.words]
        return [sys.executable, "-m", "dinoskip", *words, *options]

    def command(self, name: str, *options: str) -> list[str]:
        """``dinoskip NAME`` on the study, which is the work."""
        return [*self.words()[:3], name, *self.words()[4:], *options]

    def start_work(self, *options: str, disk: Path | None = None, **how: Any) -> Running:
        """Start the work, on all its ranks; see :meth:`start`."""
        return self.start(self.words(*options, disk=disk), ranks=self.work.ranks, **how)

    def start(
        self,
        command: Sequence[str],
        *,
        before: Sequence[str] = (),
        environment: dict[str, str] | None = None,
        ranks: int = 1,
        changes: Sequence[Change] = (),
    ) -> Running:
        """Start a command; ``before`` stands in front of it (``unshare ...``).

        ``environment`` wins over that of a rank (its port). ``changes`` give another command line for a rank.
        """
        self._count += 1
        scratch = self._scratch / str(self._count % 8)
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        added = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1", "TMPDIR": str(scratch)}
        added[EPOCH] = "1800000000"  # clocks jump, and the day is in headers of weights, which are compared
        log = self._scratch / f"log-{self._count % 8}"
        common = os.environ | added | (environment or {})
        each = [common | one | (environment or {}) for one in rank_environments(ranks)] if ranks > 1 else [common]
        commands = [list(command) for _ in each]
        for change in changes:
            commands = [change(rank, words) for rank, words in enumerate(commands)]
        return Running([[*before, *words] for words in commands], log, each, scratch)

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
