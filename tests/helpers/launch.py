"""Real child processes that start at once: a fork server imports torch once for the whole test session.

Whatever a child does, :meth:`Child.wait` also asserts that nobody of its session is left, that it wrote nothing
outside its run directory, that the images are as they were, and that an error is lines and not a traceback.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from tests.helpers.failpoints import install
from tests.helpers.system import wait_until_empty

DEADLINE = 120.0
ORPHANS = 15.0  # seconds in which a killed process's data workers notice
_OWN: defaultdict[Path, set[str]] = defaultdict(set)  # folder -> what children were meant to write there


def train(
    job: dict[str, Any],
    images: str,
    run_dir: str,
    stderr: str,
    scratch: str,
    workers: int,
    failpoint: str,
    env: dict[str, str],
    limit: int,
    mask: int | None,
    allow: Collection[str],
    prepare: Callable[[], None] | None,
) -> None:
    """Pretrain in a child process, and end as the command line would (message on stderr, exit code)."""
    import torch

    from dinoskip.data import ImageFolder
    from dinoskip.errors import ConfigError, DinoskipError
    from dinoskip.runtime.console import configure
    from dinoskip.training import PretrainJob, pretrain

    os.setsid()
    sys.stderr = open(stderr, "a", buffering=1)  # noqa: SIM115
    os.dup2(sys.stderr.fileno(), 2)
    configure()
    os.chdir(f"{scratch}/cwd")
    os.environ.update(env | {"TMPDIR": f"{scratch}/tmp"})
    tempfile.tempdir = None
    torch.set_num_threads(1)
    if limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    if mask is not None:
        os.umask(mask)
    install(failpoint)
    if prepare is not None:
        prepare()
    try:
        parsed, folder = PretrainJob.model_validate(job), ImageFolder.open(images)
        pretrain(parsed, folder, run_dir, device="cpu", workers=workers, allow=allow)
    except DinoskipError as error:
        for line in error.problems if isinstance(error, ConfigError) else (str(error),):
            print(f"error: {line}", file=sys.stderr)
        sys.exit(error.exit_code)


def _marks(folder: Path) -> dict[str, tuple[int, int]]:
    return {path.name: (path.stat().st_size, path.stat().st_mtime_ns) for path in folder.iterdir()}


class Child:
    """A training process; ``log`` is what it wrote to stderr. ``prepare``, a module's function, is called in it.

    ``writes`` is the run directory as the child sees it, if a mount of its own makes that another than ``run_dir``.
    """

    def __init__(self, job: Any, images: Path, run_dir: Path, *, workers: int = 0, failpoint: str = "",
                 env: dict[str, str] | None = None, limit: int = 0, mask: int | None = None,
                 allow: Collection[str] = (), prepare: Callable[[], None] | None = None,
                 writes: str = "") -> None:  # fmt: skip
        self.run_dir, self._images, self._kills = run_dir, images, ":kill" in failpoint
        self._stderr = run_dir.parent / f"{run_dir.name}{(env or {}).get('RANK', '')}.stderr"
        self._from = self._stderr.stat().st_size if self._stderr.exists() else 0
        _OWN[run_dir.parent] |= {run_dir.name, self._stderr.name}
        self._before, self._pictures = {path.name for path in run_dir.parent.iterdir()}, _marks(images)
        self._scratch = Path(tempfile.mkdtemp(prefix="dinoskip-child-"))
        for name in ("cwd", "tmp"):
            (self._scratch / name).mkdir()
        arguments = (job.model_dump(mode="json"), str(images), writes or str(run_dir), str(self._stderr),
                     str(self._scratch), workers, failpoint, env or {}, limit, mask, tuple(allow), prepare)  # fmt: skip
        self.process = multiprocessing.get_context("forkserver").Process(target=train, args=arguments)
        self.process.start()

    @property
    def log(self) -> str:
        if not self._stderr.exists():
            return ""
        return self._stderr.read_bytes()[self._from :].decode(errors="replace")

    def signal(self, number: int) -> None:
        """Send a signal; nothing if the child has ended already."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, number)

    def wait(self) -> int:
        """Exit code; -9 for SIGKILL. A child past the deadline is killed and fails the test."""
        self.process.join(DEADLINE)
        if self.process.exitcode is None:
            self.end()
            raise AssertionError(f"still running after {DEADLINE} s:\n{self.log}")
        self._check(int(self.process.exitcode))
        return int(self.process.exitcode)

    def _check(self, code: int) -> None:
        assert wait_until_empty(self.process.pid, ORPHANS) == [], f"processes are left\n{self.log}"
        if self._scratch.exists():
            # Sockets through which workers lend tensors: multiprocessing removes them unless it or a worker is killed.
            sockets = ("pymp-",) if code < 0 or self._kills else ()
            found = [path for path in self._scratch.glob("*/*") if not path.name.startswith(sockets or "\0")]
            assert found == [], f"files outside the run directory\n{self.log}"
            shutil.rmtree(self._scratch)
        beside = {path.name for path in self.run_dir.parent.iterdir()} - self._before - _OWN[self.run_dir.parent]
        assert beside == set(), "files beside the run directory"
        assert _marks(self._images) == self._pictures
        assert code == 1 or "Traceback" not in self.log, self.log

    def ends(self, code: int, *messages: str) -> str:
        """Wait; assert the exit code and that the log holds every message; return the log."""
        assert self.wait() == code, self.log
        for message in messages:
            assert message in self.log
        return self.log

    def end(self) -> None:
        """Kill it and what it started (its own session)."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.join(10)
        shutil.rmtree(self._scratch, ignore_errors=True)

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Poll until ``condition`` holds or the child has ended."""
        end = time.monotonic() + DEADLINE
        while not condition() and self.process.is_alive():
            assert time.monotonic() < end, self.log
            time.sleep(0.002)


@contextlib.contextmanager
def children(*made: Child) -> Iterator[tuple[Child, ...]]:
    """End the children whatever happens."""
    try:
        yield made
    finally:
        for child in made:
            child.end()


def run(*args: Any, **kwargs: Any) -> tuple[int, str]:
    """Run one child to its end; return its exit code and log."""
    child = Child(*args, **kwargs)
    with children(child):
        return child.wait(), child.log


def run_ranks(size: int, job: Any, images: Path | list[Path], run_dir: Path, **kwargs: Any) -> list[tuple[int, str]]:
    """Run ``size`` ranks to their end; exit code and log of each. ``images`` may differ from rank to rank."""
    folders = images if isinstance(images, list) else [images] * size
    environments = rank_environments(size) if size > 1 else [{}]
    made = [Child(job, folder, run_dir, env=env, **kwargs) for folder, env in zip(folders, environments, strict=True)]
    with children(*made):
        return [(child.wait(), child.log) for child in made]


def rank_environments(size: int) -> list[dict[str, str]]:
    """torchrun's variables for ``size`` processes on this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(size)]
