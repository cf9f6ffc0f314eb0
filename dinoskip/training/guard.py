"""Conditions that stop a run or cause a warning: signals, non-finite steps in a row, collapse."""

from __future__ import annotations

import math
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

PREEMPT, INTERRUPT = 1, 2
_MEANING = {signal.SIGTERM: PREEMPT, signal.SIGUSR2: PREEMPT, signal.SIGINT: INTERRUPT}
REPEATED = 1.0  # seconds in which a launcher and its terminal may both pass one request on to a rank
AT_ONCE = 3.0  # seconds from the second request to the end of a process that cannot leave by itself


class StopNow(KeyboardInterrupt):
    """The second request to stop: nothing more is saved. ``request`` is PREEMPT or INTERRUPT.

    ``signal``: what asks for it once more, where Python drops what is raised (in a destructor).
    """

    def __init__(self, request: int) -> None:
        super().__init__()
        self.request = request
        self.signal = signal.SIGTERM if request == PREEMPT else signal.SIGINT


class StopSignals:
    """While open, SIGINT, SIGTERM and SIGUSR2 only set :attr:`requested`; the loop acts at a step boundary.

    A second one raises :class:`StopNow` in the main thread at once, whatever it does. Where that is in a call that no
    exception reaches (a write to a slow disk, a wait for another rank), a thread calls :attr:`leave` after three
    seconds, which must end the process. Of several ranks each may get one request twice, from its launcher and from
    the terminal: within a second they count once. The handlers found are put back at the end. Outside the main
    thread (where Python allows no handlers) nothing is installed.
    """

    def __init__(self) -> None:
        self.requested = 0  # 0, PREEMPT or INTERRUPT
        self.leave: Callable[[int], None] = _leave
        self._repeated = REPEATED if "RANK" in os.environ or "SLURM_PROCID" in os.environ else 0.0
        self._handled, self._arrived = _Requests(self._repeated), _Requests(self._repeated)
        self._closed = threading.Event()
        self._previous: dict[int, Any] = {}

    def _handle(self, number: int, _: FrameType | None) -> None:
        """Handle a signal in the main thread, between two of its instructions."""
        meaning = _MEANING[signal.Signals(number)]
        self.requested = max(self.requested, meaning)
        # Signals that arrive while the main thread is away are one call of this handler, and two bytes in _watch.
        if self._handled.is_second() or self._arrived.seconds:
            raise StopNow(meaning)

    def _watch(self, incoming: socket.socket) -> None:
        """Read signals in a thread: each is a byte as soon as it arrives, wherever the main thread is."""
        while (data := incoming.recv(1)) and data != b"\0":
            if data[0] not in _MEANING or not self._arrived.is_second():
                continue
            if not self._closed.wait(AT_ONCE):
                self.leave(_MEANING[signal.Signals(data[0])])

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            self._outgoing, self._incoming = socket.socketpair()
            self._outgoing.setblocking(False)
            self._former = signal.set_wakeup_fd(self._outgoing.fileno(), warn_on_full_buffer=False)
            self._thread = threading.Thread(target=self._watch, args=(self._incoming,), name="signals", daemon=True)
            self._thread.start()
            self._previous = {int(number): signal.signal(number, self._handle) for number in _MEANING}
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        for number, handler in self._previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        if self._previous:
            signal.set_wakeup_fd(self._former)
            self._outgoing.send(b"\0")
            self._thread.join()
            self._outgoing.close()
            self._incoming.close()


class _Requests:
    """Counts requests to stop; those within ``repeated`` seconds of the first are the first."""

    def __init__(self, repeated: float) -> None:
        self._repeated, self._first, self.seconds = repeated, 0.0, 0

    def is_second(self) -> bool:
        """Note one that came now; whether it is another than the first."""
        now = time.monotonic()
        if not self._first:
            self._first = now
            return False
        if now - self._first < self._repeated:
            return False
        self.seconds += 1
        return True


def _leave(request: int) -> None:
    os._exit(75 if request == PREEMPT else 130)


class CollapseAlarm:
    """Says "collapse" when the loss sits at ln(out_dim), or the teacher's entropy at 0 or ln(out_dim), for long.

    ``update`` takes one logged row, with the loss, called ``loss`` there, and teacher entropy in nats. Both extremes
    are within 1 % of ln(out_dim); ``patience`` rows in a row are needed, since every run starts near ln(out_dim).
    """

    def __init__(self, out_dim: int, patience: int = 50, *, loss: str = "loss") -> None:
        self.loss = loss
        self.ceiling, self.patience = math.log(out_dim), patience
        self._rows = {"loss": 0, "sharp": 0, "flat": 0}

    def update(self, row: Mapping[str, Any]) -> str | None:
        """Return what is wrong as of this row, or None."""
        loss, entropy = row[self.loss], row["teacher_entropy"]
        near = 0.01 * self.ceiling
        signs = {
            "loss": abs(loss - self.ceiling) <= near,
            "sharp": entropy <= near,
            "flat": entropy >= self.ceiling - near,
        }
        for name, seen in signs.items():
            self._rows[name] = self._rows[name] + 1 if seen else 0
        meaning = {
            "sharp": f"the teacher's entropy is {entropy:.2f}: one prototype takes all",
            "flat": f"the teacher's entropy is ln(out_dim) = {self.ceiling:.2f}: all prototypes equal",
            "loss": f"the loss stays at ln(out_dim) = {self.ceiling:.2f}",
        }
        return next((text for name, text in meaning.items() if self._rows[name] >= self.patience), None)
