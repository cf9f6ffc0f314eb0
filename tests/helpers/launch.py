"""Real child processes that start at once: a fork server imports torch once for the whole test session."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.helpers.failpoints import install

DEADLINE = 120.0


def _context() -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["dinoskip.training", "tests.helpers.tiny"])
    return context


def train(
    job: dict[str, Any],
    images: str,
    run_dir: str,
    stderr: str,
    workers: int,
    failpoint: str,
    env: dict[str, str],
    limit: int,
    mask: int | None,
) -> None:
    """What a child does: pretrain, and leave as the command line would (message on stderr, exit code)."""
    import torch

    from dinoskip.console import configure
    from dinoskip.data import ImageFolder
    from dinoskip.errors import DinoskipError
    from dinoskip.training import PretrainJob, pretrain

    os.setsid()
    sys.stderr = open(stderr, "a", buffering=1)  # noqa: SIM115
    os.dup2(sys.stderr.fileno(), 2)
    configure()
    os.environ.update(env)
    torch.set_num_threads(1)
    if limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    if mask is not None:
        os.umask(mask)
    install(failpoint)
    try:
        pretrain(PretrainJob.model_validate(job), ImageFolder.open(images), run_dir, device="cpu", workers=workers)
    except DinoskipError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)


class Child:
    """A training process; ``log`` is what it wrote to stderr."""

    def __init__(self, job: Any, images: Path, run_dir: Path, *, workers: int = 0, failpoint: str = "",
                 env: dict[str, str] | None = None, limit: int = 0, mask: int | None = None) -> None:  # fmt: skip
        self.run_dir = run_dir
        self._stderr = run_dir.parent / f"{run_dir.name}{(env or {}).get('RANK', '')}.stderr"
        arguments = (job.model_dump(mode="json"), str(images), str(run_dir), str(self._stderr), workers, failpoint,
                     env or {}, limit, mask)  # fmt: skip
        self.process = _context().Process(target=train, args=arguments)
        self.process.start()

    @property
    def log(self) -> str:
        return self._stderr.read_text() if self._stderr.exists() else ""

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
        return int(self.process.exitcode)

    def end(self) -> None:
        """Kill it and what it started (its own session)."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.join(10)

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


def rank_environments(size: int) -> list[dict[str, str]]:
    """torchrun's variables for ``size`` processes on this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(size)]
