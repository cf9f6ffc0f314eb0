"""Engines that run assignments: this process, workers of this machine, and any executor as of ``concurrent.futures``.

A worker gets an :class:`~dinoskip.pipeline.making.Assignment` and the name of its stage, makes the node as a run alone
would, and publishes it; only seconds travel back. What it says goes to ``STUDY/logs/NODE.log``.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, ProcessPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import connection
from pathlib import Path
from typing import Any

from dinoskip.errors import (
    ConfigError,
    DataError,
    DinoskipError,
    NonFiniteError,
    Preempted,
    WeightsError,
    first_line,
    memory_refused,
)
from dinoskip.io.output import own_folder
from dinoskip.pipeline import stages
from dinoskip.pipeline.making import Assignment, Made, Maker, Reserve, lead_or_follow
from dinoskip.pipeline.room import ask_room
from dinoskip.pipeline.scheduling import Order
from dinoskip.pipeline.stage import Stage
from dinoskip.runtime.console import configure, log
from dinoskip.runtime.cores import available_cores
from dinoskip.runtime.memory import memory_share
from dinoskip.runtime.stopping import Terminated, stopped_by_signals
from dinoskip.settings.config import implementation

LOGS = "logs"  # of a study: what workers said, a file for each node and each worker
ORPHANED = 120.0  # seconds that a worker whose leader has died has to reach a safe point
GROUP_SECONDS = 60.0  # a job elsewhere is queued, and its process imports torch: some ten seconds or more
MOST_ELSEWHERE = 8  # nodes at once of an executor that does not say how many workers it has
_busy = threading.Event()  # this worker is at a node


class InProcess:
    """The engine with one worker: nodes are made where the leader is, with the other ranks of its job."""

    name, capacity = "this process", 1
    memory: int | None = None
    cores: int | None = None
    group_seconds = 0.0

    def __init__(self, maker: Maker, reserve: Callable[[Assignment], Reserve]) -> None:
        self._maker, self._reserve = maker, reserve

    def submit(self, orders: Sequence[Order]) -> list[Future[Made]]:
        """Make the node at once. Data, weights or numbers that cannot be used are the future's error: others may not
        need them. All other errors are raised."""
        ((work, stage),) = orders
        future: Future[Made] = Future()
        try:
            future.set_result(self._maker.make(work, stage, self._reserve(work)))
        except (DataError, WeightsError, NonFiniteError) as error:
            if self._maker.together and self._maker.ranks is not None and self._maker.ranks.size > 1:
                raise  # the other ranks have left with it
            self._maker.together = False
            future.set_exception(error)
        return [future]

    def stop(self) -> None:
        """Nothing runs beside the leader."""

    def close(self) -> None:
        """Nothing is to be let go."""


# --- in a worker --------------------------------------------------------------------------------------


def make_assigned(work: Assignment, stage: str | Stage, verbosity: int = 0) -> Made:
    """Make a node in this process, which another one leads; ranks other than the first take part in that.

    ``stage`` is a name of :data:`dinoskip.pipeline.stages`, or a stage of the caller's own. A signal that stops this
    process is :class:`Preempted`, after the stage's safe point; an error that is none of ours goes to the log with its
    traceback.
    """
    of_node = stages.load(stage) if isinstance(stage, str) else stage
    reserve: Reserve = partial(ask_room, work.study, work.node.id) if work.limited else _enough
    with ExitStack() as inside:
        inside.enter_context(_logged(work.study / LOGS / f"{work.node.id}.log", verbosity))
        if threading.current_thread() is threading.main_thread():
            inside.enter_context(stopped_by_signals(at_end=False))
        _busy.set()
        inside.callback(_busy.clear)
        try:
            made = lead_or_follow(
                work.device, {"node": work.node.id, "key": work.key}, work.study, lambda _: of_node,
                lambda maker: maker.make(work, of_node, reserve),
            )  # fmt: skip
            return made or Made(0.0, by_another=True)
        except Terminated:
            raise Preempted(f"{work.node.id}: stopped by a signal") from None
        except DinoskipError as error:
            log.error("%s", error)
            raise
        except Exception:
            log.exception("%s", work.node.id)
            raise


Outcome = Made | Exception


def make_group(orders: Sequence[tuple[Assignment, str | Stage]], verbosity: int = 0) -> list[Outcome]:
    """Make nodes one after another as :func:`make_assigned` does; an error is the outcome of its node alone.

    After a signal none begins. Errors are such as can be sent to another process.
    """
    outcomes: list[Outcome] = []
    for work, stage in orders:
        if outcomes and isinstance(outcomes[-1], Preempted):
            outcomes.append(Preempted(f"{work.node.id}: not begun, its worker was stopped by a signal"))
            continue
        try:
            outcomes.append(make_assigned(work, stage, verbosity))
        except DinoskipError as error:
            outcomes.append(error)
        except Exception as error:
            refused = memory_refused(error) is not None
            said = f"{work.node.id}: {type(error).__name__}: {first_line(error)}"
            outcomes.append(MemoryError(first_line(error)) if refused else DinoskipError(said))
    return outcomes


def settle(future: Future[Made], outcome: Made | BaseException) -> None:
    """Give a node's future its outcome."""
    if isinstance(outcome, Made):
        future.set_result(outcome)
    else:
        future.set_exception(outcome)


def of_nodes(job: Future[list[Outcome]], count: int) -> list[Future[Made]]:
    """A future for each node of a job, whose end is theirs: where its worker was lost, of all of them."""
    futures: list[Future[Made]] = [Future() for _ in range(count)]

    def ended(job: Future[list[Outcome]]) -> None:
        lost: BaseException | None = CancelledError() if job.cancelled() else job.exception()
        for future, outcome in zip(futures, [lost] * count if lost is not None else job.result(), strict=True):
            settle(future, outcome)

    job.add_done_callback(ended)
    return futures


def _enough(nbytes: int) -> None:
    """No limit on the disk."""


@contextmanager
def _logged(path: Path, verbosity: int) -> Iterator[None]:
    """Append what is logged to a file."""
    own_folder(path.parent)
    handler = logging.FileHandler(path, encoding="utf-8")
    before = log.level
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.DEBUG if verbosity > 0 else logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before)
        handler.close()


def for_others(orders: Sequence[Order]) -> list[tuple[Assignment, str | Stage]]:
    """Orders as another process gets them."""
    return [(work, portable(stage)) for work, stage in orders]


def portable(stage: Stage) -> str | Stage:
    """Return a stage as another process receives it: its name, or, if it is not in the table, the parts that run it."""
    with suppress(KeyError, ImportError):
        if stages.load(stage.name).run is stage.run:
            return stage.name
    return replace(stage, add_nodes=None, check=None, choices=None, section=None, command=None)


# --- workers of this machine --------------------------------------------------------------------------


@dataclass(frozen=True)
class WorkerPlace:
    """Environment variables and cores (none: all) of a worker on this machine."""

    environment: Mapping[str, str]
    cores: tuple[int, ...] = ()


def places(count: int, gpus: Sequence[str], threads: int | None = None) -> list[WorkerPlace]:
    """Share this machine among ``count`` workers: a GPU each, in turn, and equal groups of cores.

    ``threads`` are those of each worker's arithmetic: of OMP_NUM_THREADS where that is set, else its share of the
    cores. Workers of equal threads compute the same bits.
    """
    there = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    each = len(there) // count
    given = threads or int(os.environ.get("OMP_NUM_THREADS") or 0) or max(1, available_cores() // count)
    made = []
    for number in range(count):
        variables = {"OMP_NUM_THREADS": str(given)}
        if gpus:
            variables["CUDA_VISIBLE_DEVICES"] = gpus[number % len(gpus)]
        made.append(WorkerPlace(variables, tuple(there[number * each : (number + 1) * each]) if each else ()))
    return made


def visible_gpus() -> list[str]:
    """Names, as CUDA_VISIBLE_DEVICES has them, of the GPUs that this process sees."""
    import torch  # heavy: only where workers begin

    named = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return named or [str(number) for number in range(torch.cuda.device_count())]


class LocalWorkers:
    """Processes of this machine that stay for the whole run; one that dies takes no other along and is replaced."""

    name = "workers of this machine"
    group_seconds = 0.0  # a worker that is there begins a node at once

    def __init__(self, study: Path, given: Sequence[WorkerPlace], verbosity: int = 0) -> None:
        self.capacity, self._verbosity = len(given), verbosity
        self.memory: int | None = memory_share()
        self.cores: int | None = max(len(place.cores) for place in given) or None
        self._logs = study / LOGS
        self._workers = [_Worker(place, self._logs / f"worker-{number}.log") for number, place in enumerate(given, 1)]

    def submit(self, orders: Sequence[Order]) -> list[Future[Made]]:
        """Give the nodes to a worker that is free."""
        own_folder(self._logs)
        worker = next(worker for worker in self._workers if worker.is_free)
        return of_nodes(worker.submit(for_others(orders), self._verbosity), len(orders))

    def stop(self) -> None:
        """SIGTERM to every worker that is at a node."""
        for worker in self._workers:
            worker.stop()

    def close(self) -> None:
        """End the workers, which are at no node any more."""
        for worker in self._workers:
            worker.close()


class _Worker:
    """A pool of one process, made when it is first needed, and again after it has died."""

    def __init__(self, place: WorkerPlace, log_file: Path) -> None:
        self._place, self._log = place, log_file
        self._pool: ProcessPoolExecutor | None = None
        self._future: Future[list[Outcome]] | None = None
        self._pid: Any = None

    @property
    def is_free(self) -> bool:
        return self._future is None or self._future.done()

    def submit(self, orders: Sequence[tuple[Assignment, str | Stage]], verbosity: int) -> Future[list[Outcome]]:
        if self._future is not None and isinstance(self._future.exception(), BrokenExecutor):
            self.close()
        before = {name: os.environ.get(name) for name in self._place.environment}
        os.environ.update(self._place.environment)  # the process begins in here: NumPy and torch read it as they load
        try:
            try:
                self._future = self._begun().submit(make_group, orders, verbosity)
            except BrokenExecutor:  # it was killed while it had nothing to do
                self.close()
                self._future = self._begun().submit(make_group, orders, verbosity)
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})
        return self._future

    def _begun(self) -> ProcessPoolExecutor:
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            self._pid = context.Value("i", 0)
            start = (self._pid, self._place.cores, str(self._log))
            self._pool = ProcessPoolExecutor(1, context, _begin_worker, start)
        return self._pool

    def stop(self) -> None:
        if not self.is_free and self._pid.value:
            with suppress(ProcessLookupError):
                os.kill(self._pid.value, signal.SIGTERM)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = self._future = None


def _begin_worker(pid: Any, cores: Sequence[int], log_file: str) -> None:
    """Prepare a worker: set its cores, ignore Ctrl-C, and write all that it and its libraries print into a file.

    Ctrl-C of a terminal goes to all processes; the leader tells the workers to stop.
    """
    pid.value = os.getpid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if cores:
        os.sched_setaffinity(0, cores)
    stream = open(log_file, "a", buffering=1, encoding="utf-8")  # noqa: SIM115 - open as long as the process lives
    os.dup2(stream.fileno(), 1)
    os.dup2(stream.fileno(), 2)
    sys.stdout = sys.stderr = stream
    configure()
    log.handlers.clear()  # each node has a log of its own
    threading.Thread(target=_end_without_leader, name="leader", daemon=True).start()


def _end_without_leader() -> None:
    """End this worker when its leader has died: at the safe point of what it is at, which then can be resumed."""
    leader = multiprocessing.parent_process()
    if leader is None:
        return
    connection.wait([leader.sentinel])
    if _busy.is_set():
        os.kill(os.getpid(), signal.SIGTERM)
    until = time.monotonic() + ORPHANED
    while _busy.is_set() and time.monotonic() < until:
        time.sleep(0.1)  # small against ORPHANED, and nothing but a flag is read
    os._exit(Preempted.exit_code)


# --- any other ----------------------------------------------------------------------------------------


class ForeignWorkers:
    """An executor that somebody else made: of Dask, Parsl, MPI, or of the standard library."""

    memory: int | None = None  # what its workers have is not known here
    cores: int | None = None
    group_seconds = GROUP_SECONDS

    def __init__(self, spec: str, capacity: int | None, verbosity: int = 0) -> None:
        """``spec`` is ``module:function``; the function takes nothing and returns the executor."""
        self.name, self._verbosity = spec, verbosity
        self._make = named_function(spec)
        self._executor = self._made()
        self.capacity = capacity or getattr(self._executor, "_max_workers", None) or MOST_ELSEWHERE
        self._futures: list[Future[list[Outcome]]] = []

    def _made(self) -> Executor:
        executor: Executor = self._make()
        if not hasattr(executor, "submit"):
            kind = type(executor).__name__
            raise ConfigError(f"{self.name}: returned a {kind}, which has no submit()", "see docs/cluster.md")
        return executor

    def submit(self, orders: Sequence[Order]) -> list[Future[Made]]:
        """Give the nodes to the executor, or to a new one if it has broken."""
        order = partial(make_group, for_others(orders), self._verbosity)
        try:
            future = self._executor.submit(order)
        except BrokenExecutor:
            self._executor = self._made()
            future = self._executor.submit(order)
        self._futures = [*(left for left in self._futures if not left.done()), future]
        return of_nodes(future, len(orders))

    def stop(self) -> None:
        """Cancel what has not begun: there is no way to tell what runs, which ends by itself."""
        for future in self._futures:
            future.cancel()

    def close(self) -> None:
        """Let the executor go."""
        self._executor.shutdown()


def named_function(spec: str) -> Callable[[], Any]:
    """The function ``module:function``; :class:`ConfigError` if it is not there. The current folder is searched."""
    if (here := os.getcwd()) not in sys.path:
        sys.path.append(here)
    try:
        made: Callable[[], Any] = implementation(spec)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"run.executor: {spec}: {error}", "write module:function, as docs/cluster.md shows") from None
    return made
