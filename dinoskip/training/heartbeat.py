"""Signs of life among ranks: who is gone or hangs is named in one line, within a bound, and nobody waits for it.

Every rank writes a number that grows, with its step and what it does, to the job's key-value store (the one through
which the ranks met) once a second or more often. Rank 0 watches all others, they watch rank 0. A rank whose number
stands still for the whole bound, counted in one's own signs of life and not by the clock (a suspended machine is no
dead rank), is lost: the main thread may be in a collective that nothing can interrupt, so the process is ended from
here.

These signs come from a thread, which goes on where the main thread hangs. So they also say how often the main thread
has noted what it does: its progress. Rank 0 watches everybody's, its own too. All ranks note the same things in the
same order, so the one that has noted least is the one that the others wait for; it is lost once its action has lasted
longer than the bound, than the patience that was asked for it, and than twice the longest such action of this rank
before. The first step of a session, which compiles, evaluation and checkpoints have no bound.
"""

from __future__ import annotations

import json
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from dinoskip.distributed import World, gather
from dinoskip.errors import DinoskipError, Interrupted, Preempted, RankLost
from dinoskip.training.objective import ProgressCallback, no_progress

INTERVAL = 1.0  # seconds between signs of life, at most
SILENT = 4  # signs of life missed by a rank that is taken for dead once a collective has failed


@dataclass
class _Peer:
    """What is known of a rank."""

    text: str
    missed: int = 0  # own signs of life since its last
    still: int = 0  # own signs of life since it last noted an action
    longest: dict[str, int] = field(default_factory=dict)  # the same at the end of each action, at most

    def state(self) -> dict[str, Any]:
        """The rank's last sign of life: host, pid, step, action; once it has ended, ``left`` is its error, or empty."""
        state: dict[str, Any] = json.loads(self.text)
        return state

    def update(self, text: str) -> None:
        """Take what it says now, one interval after it was last looked at."""
        before = self.state()
        self.missed = self.missed + 1 if text == self.text else 0
        self.text = text
        if self.state()["progress"] == before["progress"]:
            self.still += 1
            return
        action = before["action"]
        self.longest[action] = max(self.longest.get(action, 0), self.still)
        self.still = 0

    def overdue(self, bound: float, interval: float) -> bool:
        """Whether its action has lasted longer than any such action may; times in seconds."""
        state = self.state()
        allowed = max(bound, state["patience"], 2 * interval * self.longest.get(state["action"], 0))
        return bool(self.still * interval > allowed)

    def describe(self, rank: int) -> str:
        """Who it is and what it did last."""
        state = self.state()
        return (
            f"rank {rank} on {state['host']} (process {state['pid']}), last at step {state['step']}: {state['action']}"
        )


@dataclass(frozen=True)
class _Ended:
    """Why a collective failed: which rank has gone, and whether with an error of its own."""

    line: str
    with_error: bool


class Heartbeat:
    """This rank's signs of life and its view of the others'. Open it with :func:`heartbeat` on all ranks together."""

    def __init__(self, here: World, bound: float, lost: Callable[[str], None]) -> None:
        self.here, self._bound, self._lost = here, bound, lost
        self._interval = min(INTERVAL, bound / 8)
        self._state: dict[str, Any] = {
            "host": socket.gethostname(), "pid": os.getpid(), "step": 0, "action": "start", "progress": 0,
            "patience": math.inf,
        }  # fmt: skip
        self._first: int | None = None  # step of this session
        self._beats, self._answered = 0, 0
        self._stop = threading.Event()
        watched = range(here.size) if here.is_main else (0,)
        # A connection of its own: the one that collectives use waits for them.
        self._store = dist.distributed_c10d._get_default_store().clone()
        self._store.set_timeout(timedelta(seconds=bound))
        self._tell()
        gather(None)  # all have told
        self._peers = {rank: _Peer(self._store.get(_key(rank)).decode()) for rank in watched}

    def note(self, step: int, action: str, patience: float = 0.0) -> None:
        """What this rank does from now on (a :class:`dinoskip.training.objective.ProgressCallback`);
        sent with the next sign of life.
        """
        self._first = step if self._first is None else self._first
        self._state = self._state | {
            "step": step, "action": action, "progress": self._state["progress"] + 1,
            "patience": math.inf if step == self._first else patience,
        }  # fmt: skip

    def start(self) -> None:
        """Begin to tell and to watch."""
        for target in (self._exchange, self._watch):
            threading.Thread(target=target, name=f"heartbeat-{target.__name__}", daemon=True).start()

    def end(self, error: BaseException | None) -> None:
        """Tell the others that this rank has left, and why if not with them."""
        together = error is None or isinstance(error, Preempted | Interrupted | KeyboardInterrupt)
        self._state["left"] = "" if together else str(error).partition("\n")[0] or type(error).__name__
        self._stop.set()
        with suppress(RuntimeError):  # the store may have gone with rank 0
            self._tell()
        if self.here.is_main and not together:
            time.sleep(2 * self._interval)  # the store may end with this process: the others must have read it

    def _tell(self) -> None:
        self._beats += 1
        self._store.set(_key(self.here.rank), json.dumps({"beat": self._beats, **self._state}))

    def _exchange(self) -> None:
        """Tell and look, once an interval. A store that does not answer is rank 0's silence; see :meth:`_watch`."""
        ranks = list(self._peers)
        while not self._stop.wait(self._interval):
            with suppress(RuntimeError):
                self._tell()
                texts = self._store.multi_get([_key(rank) for rank in ranks])
                for rank, text in zip(ranks, texts, strict=True):
                    self._peers[rank].update(text.decode())
                if self._store.check([_LOST]):
                    self._lost(self._store.get(_LOST).decode())
                self._answered = 0
                if self.here.is_main and (line := self._without_progress()):
                    self._tell_lost(line)

    def _watch(self) -> None:
        """End this process where a rank has been silent for the whole bound."""
        allowed = max(2, round(self._bound / self._interval))
        while not self._stop.wait(self._interval):
            self._answered += 1  # intervals since the store answered last
            for rank, peer in self._peers.items():
                if rank == self.here.rank:
                    continue
                silent = peer.missed if self._answered < allowed else allowed
                if silent >= allowed and "left" not in peer.state():
                    self._tell_lost(f"{peer.describe(rank)}; no sign of life for {self._bound:g} s")

    def _without_progress(self) -> str:
        """Which rank the others wait for, if it is overdue; empty if none is, or if one is silent, which is worse."""
        told = {rank: peer.state() for rank, peer in self._peers.items()}
        if any(peer.missed >= SILENT or "left" in told[rank] for rank, peer in self._peers.items()):
            return ""
        least = min(state["progress"] for state in told.values())
        behind = [rank for rank, state in told.items() if state["progress"] == least]
        if not all(self._peers[rank].overdue(self._bound, self._interval) for rank in behind):
            return ""
        seconds = round(min(self._peers[rank].still for rank in behind) * self._interval)
        same = f" (and {len(behind) - 1} more at the same point)" if len(behind) > 1 else ""
        return f"{self._peers[behind[0]].describe(behind[0])}{same}; no progress for {seconds} s"

    def _tell_lost(self, line: str) -> None:
        if self.here.is_main:
            with suppress(RuntimeError):
                self._store.set(_LOST, line)
            time.sleep(2 * self._interval)  # the store may end with this process: the others must have read it
        self._lost(line)

    def explain(self) -> _Ended | None:
        """Name, after a collective has failed, the rank that has ended or is silent; None if all are there.

        Waits a few signs of life. Ranks but the first know of rank 0 alone, and ask for all here.
        """
        ranks = [rank for rank in range(self.here.size) if rank != self.here.rank]
        first = self._read(ranks)
        self._stop.wait(SILENT * self._interval)
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
        try:
            texts = self._store.multi_get([_key(rank) for rank in ranks])
        except RuntimeError:
            return None
        return {rank: _Peer(text.decode()) for rank, text in zip(ranks, texts, strict=True)}


_LOST = "heartbeat/lost"


def _key(rank: int) -> str:
    return f"heartbeat/{rank}"


@contextmanager
def heartbeat(here: World, bound: float, lost: Callable[[str], None]) -> Iterator[ProgressCallback]:
    """Watch over all ranks while the block runs; gives what notes this rank's step and action, alike on all ranks.

    ``lost(line)`` is called in another thread once a rank has been silent, or without progress, for ``bound`` seconds,
    and must end the process. A collective that fails because a rank has died is raised as :class:`RankLost` naming it;
    what another rank ended with as :class:`DinoskipError`. With one rank nothing happens.
    """
    if here.size == 1:
        yield no_progress
        return
    beats = Heartbeat(here, bound, lost)
    beats.start()
    try:
        yield beats.note
    except BaseException as error:
        ended = beats.explain() if _is_communication(error) else None
        if ended is None:
            beats.end(error)
            raise
        if ended.with_error:
            failure = DinoskipError(ended.line, "see what it said; run the same command again to continue")
        else:
            failure = RankLost(ended.line)
        beats.end(failure)
        raise failure from error
    else:
        beats.end(None)


def _is_communication(error: BaseException) -> bool:
    """Whether this may be what torch says of a rank that does not answer."""
    if type(error) is DinoskipError:  # of a ProcessGroup
        return isinstance(error.__cause__, RuntimeError)
    return type(error) is RuntimeError or isinstance(error, dist.DistError)
