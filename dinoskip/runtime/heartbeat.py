"""Signs of life among ranks: who is gone or hangs is named in one line, within a bound, and nobody waits for it.

From the moment that it has joined, every rank writes a number that grows, with its step and what it does, to the job's
key-value store (the one through which the ranks met) once a second or more often. Rank 0 watches all others, they watch
rank 0. A rank whose number stands still for the whole bound, counted in one's own signs of life and not by the clock (a
suspended machine is no dead rank), is lost: the main thread may be in a collective that nothing can interrupt, so the
process is ended from here, after the stacks of all its threads have been written to stderr.

These signs come from a thread, which goes on where the main thread hangs. So they also say how often the main thread
has noted what it does: its progress. Rank 0 watches everybody's, its own too. All ranks note the same things in the
same order, so the one that has noted least is the one that the others wait for; it is lost once its action has lasted
longer than the bound, than the patience that was asked for it, and than twice the longest such action of this rank
before. After rank 0 has left, every rank watches its own progress.

Torch's own timeouts are left what they cover: the waits while ranks join (of the store), and, as the last resort, a
collective that takes half an hour (of the process group). They name no rank, and NCCL's ends the process by a signal.
"""

from __future__ import annotations

import faulthandler
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NoReturn, Protocol

import torch.distributed as dist

from dinoskip.errors import DinoskipError, Interrupted, Preempted, RankLost

INTERVAL = 1.0  # seconds between signs of life, at most
SILENT = 4  # signs of life missed by a rank that is taken for dead once a collective has failed
SLOWEST = 8  # signs of life, at a rank's own pace, until it may be called silent, however small the bound
BOUND = 900.0  # seconds, where no bound is set: what computes here may keep Python's lock for minutes (eigenvectors)
IDLE = 30 * 86400.0  # seconds: ranks that wait while rank 0 works alone at stages of a study
LAST_WORDS = 30.0  # seconds in which a process that has lost another must have ended, also where its disk hangs


class ProgressCallback(Protocol):
    """Says what a rank does from now on: that it goes on, and what it was at if not."""

    def __call__(self, step: int, action: str, patience: float = 0.0) -> None:
        """Steps are 1, 2, ...; ``patience``: seconds that the action may take if that is longer than the bound."""


def no_progress(step: int, action: str, patience: float = 0.0) -> None:
    """Tell nobody: the :class:`ProgressCallback` of one rank alone."""


def leave(line: str) -> NoReturn:
    """End this process, which has nothing to save, since another rank is lost."""
    os.write(2, f"error: {line}\n".encode())
    os._exit(DinoskipError.exit_code)


@dataclass
class _Peer:
    """State of a rank as last read. Times are in seconds, counted by the signs of life of the rank that reads it."""

    text: str
    missed: float = 0.0  # since its last sign of life
    still: float = 0.0  # since it last noted an action
    longest: dict[str, float] = field(default_factory=dict)  # the same at the end of each action, at most

    def state(self) -> dict[str, Any]:
        """The rank's last sign of life: host, pid, step, action; once it has ended, ``left`` is its error, or empty."""
        state: dict[str, Any] = json.loads(self.text)
        return state

    def update(self, text: str, interval: float) -> None:
        """Take what it says now, ``interval`` seconds after it was last looked at."""
        before = self.state()
        self.missed = self.missed + interval if text == self.text else 0.0
        self.text = text
        if self.state()["progress"] == before["progress"]:
            self.still += interval
            return
        action = before["action"]
        self.longest[action] = max(self.longest.get(action, 0.0), self.still)
        self.still = 0.0

    def silent(self, bound: float) -> bool:
        """Whether it has given no sign of life for ``bound`` seconds, and for a few at its own pace."""
        return bool(self.missed >= max(bound, SLOWEST * self.state()["interval"]))

    def overdue(self, bound: float) -> bool:
        """Whether its action has lasted longer than any such action may."""
        state = self.state()
        return bool(self.still > max(bound, state["patience"], 2 * self.longest.get(state["action"], 0.0)))

    def describe(self, rank: int) -> str:
        """Describe the rank: its number, host and process, its last step and action."""
        state = self.state()
        return (
            f"rank {rank} on {state['host']} (process {state['pid']}), last at step {state['step']}: {state['action']}"
        )


@dataclass(frozen=True)
class _Ended:
    """Reason for a failed collective: a line on the rank that has ended, and whether it ended with an error."""

    line: str
    with_error: bool


class Heartbeat:
    """This rank's signs of life and its view of the others'. All ranks make one together, when they have joined.

    ``store`` is the job's; the heartbeat has a connection of its own, since collectives wait on theirs. ``seconds``:
    for all ranks to have told once.
    """

    def __init__(self, rank: int, size: int, store: dist.Store, seconds: float) -> None:
        self.rank, self.size = rank, size
        self._bound, self._interval = BOUND, INTERVAL
        self._lost: Callable[[str], None] = leave
        self._state: dict[str, Any] = {
            "host": socket.gethostname(), "pid": os.getpid(), "step": 0, "action": "connecting to the other ranks",
            "progress": 0, "patience": seconds, "interval": self._interval,
        }  # fmt: skip
        self._beats, self._unanswered, self._gone = 0, 0.0, False
        self._failure: DinoskipError | None = None
        self._stop, self._leaving = threading.Event(), threading.Lock()
        self._store = store.clone()
        self._store.set_timeout(timedelta(seconds=seconds))
        self._tell()
        watched = range(size) if rank == 0 else (0,)
        self._peers = {other: _Peer(self._store.get(_key(other)).decode()) for other in watched}
        for target in (self._exchange, self._watch):
            threading.Thread(target=target, name=f"heartbeat-{target.__name__}", daemon=True).start()

    def note(self, step: int, action: str, patience: float = 0.0) -> None:
        """Set what this rank does from now on (a :class:`ProgressCallback`); it is sent with the next sign of life."""
        progress = self._state["progress"] + 1
        self._state = self._state | {"step": step, "action": action, "progress": progress, "patience": patience}

    @contextmanager
    def watched(self, bound: float, lost: Callable[[str], None] | None = None) -> Iterator[ProgressCallback]:
        """Hold ranks to ``bound`` seconds while the block runs, and call ``lost`` if one is lost; gives :meth:`note`.

        ``lost(line)`` is called in another thread and must end the process. A collective that fails because a rank has
        died is raised as :class:`RankLost` naming it; what another rank ended with as :class:`DinoskipError`.
        """
        before = self._bound, self._interval, self._lost
        self._bound, self._interval, self._lost = bound, min(INTERVAL, bound / SLOWEST), lost or self._lost
        self._state = self._state | {"interval": self._interval}
        try:
            yield self.note
            self.note(0, "between trainings", IDLE)
        except BaseException as error:
            failure = self._named(error)
            if failure is None:
                raise
            raise failure from error
        finally:
            self._bound, self._interval, self._lost = before
            self._state = self._state | {"interval": self._interval}

    def _named(self, error: BaseException) -> DinoskipError | None:
        """Return the error to raise for a failed collective; None for this rank's own error, or one returned before."""
        if error is self._failure or not _is_communication(error):
            return None
        ended = self._explain()
        if ended is None:
            return None
        hint = "see what it said; run the same command again to continue"
        if self._lost is leave:  # no training: there is no checkpoint that stands
            text = "another process of this job has ended before its work was done"
            self._failure = DinoskipError(f"{text}: {ended.line}", hint)
        elif ended.with_error:
            self._failure = DinoskipError(ended.line, hint)
        else:
            self._failure = RankLost(ended.line)
        return self._failure

    def end(self, error: BaseException | None) -> None:
        """Tell the others that this rank has left, and why if not with them."""
        together = error is None or isinstance(error, Preempted | Interrupted | KeyboardInterrupt)
        self._state = self._state | {"left": "" if together else str(error).partition("\n")[0] or type(error).__name__}
        self._stop.set()
        if not self._gone:
            with suppress(RuntimeError):  # the store may have gone with rank 0
                self._tell()
        if self.rank == 0 and not together:
            time.sleep(2 * self._interval)  # the store may end with this process: the others must have read it

    def _tell(self) -> None:
        self._beats += 1
        self._store.set(_key(self.rank), json.dumps({"beat": self._beats, **self._state}))

    @contextmanager
    def _connected(self) -> Iterator[None]:
        """Note that the store's connection is broken: it stays so, and torch would print where at every try."""
        try:
            yield
        except dist.DistNetworkError:
            self._gone = True
            raise

    def _exchange(self) -> None:
        """Tell and look, once an interval. A store that does not answer is rank 0's silence; see :meth:`_watch`."""
        ranks = list(self._peers)
        while not self._gone and not self._stop.wait(interval := self._interval):
            with suppress(RuntimeError), self._connected():
                self._tell()
                texts = self._store.multi_get([_key(rank) for rank in ranks])
                for rank, text in zip(ranks, texts, strict=True):
                    self._peers[rank].update(text.decode(), interval)
                if self._store.check([_LOST]):
                    self._leave(self._store.get(_LOST).decode())
                self._unanswered = 0.0
                if self.rank == 0 and (line := self._without_progress()):
                    self._tell_lost(line)

    def _watch(self) -> None:
        """End this process where a rank has been silent for the bound, or where it hangs and rank 0 has left."""
        own = _Peer(json.dumps(self._state))
        while not self._stop.wait(interval := self._interval):
            self._unanswered += interval  # since the store answered last
            own.update(json.dumps(self._state), interval)
            if self.rank and "left" in self._peers[0].state() and own.overdue(self._bound):
                self._leave(f"{own.describe(self.rank)}; no progress for {own.still:.0f} s, and rank 0 has left")
            for rank, peer in self._peers.items():
                if rank == self.rank or "left" in peer.state():
                    continue
                if peer.silent(self._bound) or self._unanswered >= max(self._bound, SLOWEST * interval):
                    self._tell_lost(f"{peer.describe(rank)}; no sign of life for {self._bound:g} s")

    def _without_progress(self) -> str:
        """Return a line on the overdue rank that others wait for; empty if none is, or if one is silent (worse)."""
        told = {rank: peer.state() for rank, peer in self._peers.items()}
        if any("left" in told[rank] or peer.missed >= SILENT * told[rank]["interval"]
               for rank, peer in self._peers.items()):  # fmt: skip
            return ""
        least = min(state["progress"] for state in told.values())
        behind = [rank for rank, state in told.items() if state["progress"] == least]
        if not all(self._peers[rank].overdue(self._bound) for rank in behind):
            return ""
        seconds = round(min(self._peers[rank].still for rank in behind))
        same = f" (and {len(behind) - 1} more at the same point)" if len(behind) > 1 else ""
        return f"{self._peers[behind[0]].describe(behind[0])}{same}; no progress for {seconds} s"

    def _tell_lost(self, line: str) -> None:
        if self.rank == 0:
            with suppress(RuntimeError):
                self._store.set(_LOST, line)
            time.sleep(2 * self._interval)  # the store may end with this process: the others must have read it
        self._leave(line)

    def _leave(self, line: str) -> None:
        """Write the stacks of all threads and end this process, whichever thread asks for it first."""
        with self._leaving:
            faulthandler.dump_traceback(2, all_threads=True)
            faulthandler.dump_traceback_later(LAST_WORDS, exit=True, file=2)  # its status may be on a disk that hangs
            self._lost(line)

    def _explain(self) -> _Ended | None:
        """Name, after a collective has failed, the rank that has ended or is silent; None if all are there.

        Waits a few signs of life. Ranks but the first know of rank 0 alone, and ask for all here.
        """
        ranks = [rank for rank in range(self.size) if rank != self.rank]
        first = self._read(ranks)
        slowest = max([self._interval, *(peer.state()["interval"] for peer in (first or self._peers).values())])
        self._stop.wait(SILENT * slowest)
        second = self._read(ranks)
        if first is None or second is None:  # the store has gone, and rank 0 with it
            first = second = self._peers
        for rank, peer in second.items():
            if left := peer.state().get("left"):
                return _Ended(f"rank {rank} on {peer.state()['host']} ended: {left}", with_error=True)
        for rank, peer in second.items():
            if peer.text == first[rank].text:
                return _Ended(f"{peer.describe(rank)}; it has ended", with_error=False)
        return None

    def _read(self, ranks: list[int]) -> dict[int, _Peer] | None:
        if self._gone:
            return None
        try:
            with self._connected():
                texts = self._store.multi_get([_key(rank) for rank in ranks])
        except RuntimeError:
            return None
        return {rank: _Peer(text.decode()) for rank, text in zip(ranks, texts, strict=True)}


_LOST = "heartbeat/lost"


def _key(rank: int) -> str:
    return f"heartbeat/{rank}"


def _is_communication(error: BaseException) -> bool:
    """Whether this may be what torch says of a rank that does not answer."""
    if type(error) is DinoskipError:  # of a ProcessGroup
        return isinstance(error.__cause__, RuntimeError)
    return type(error) is RuntimeError or isinstance(error, dist.DistError)
