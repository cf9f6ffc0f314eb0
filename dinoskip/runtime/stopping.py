"""Signals that stop a process, as exceptions in its main thread: of commands and of the workers of a study."""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from dinoskip.errors import Interrupted, Preempted

TEARDOWN = 10.0
"""Seconds after a signal in which further ones are ignored."""
IMPORTING = 20.0
"""Seconds that a signal waits for the end of an import."""


class Terminated(BaseException):
    """SIGTERM or SLURM's SIGUSR2, as an exception that nothing on the way takes for a damaged file."""

    signal = signal.SIGTERM


class _Stop:
    """Raises at the first signal; those that follow within :data:`TEARDOWN` seconds change nothing.

    What the first one promised (an exit code, files put away) is kept, and a signal that was swallowed on its way can
    be sent again. While a module is imported the signal waits for the end of that, :data:`IMPORTING` seconds at most:
    what is raised there, packages take for a dependency that is missing, and Python's own C code for an error of its
    own.
    """

    def __init__(self) -> None:
        self.last = -math.inf
        self.raised: BaseException | None = None
        self.dropping = False
        self._waits_until = math.inf

    def __call__(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.tears_down():
            return
        if _is_import(frame):
            self._waits_until = min(self._waits_until, now + IMPORTING)
            if now < self._waits_until:
                threading.Thread(target=self._again, args=(number,), daemon=True).start()
                return
        self.last, self._waits_until = now, math.inf
        self.raised = KeyboardInterrupt() if number == signal.SIGINT else Terminated()
        raise self.raised

    def tears_down(self) -> bool:
        """Whether a signal has raised lately."""
        return time.monotonic() - self.last < TEARDOWN

    def _again(self, number: int) -> None:
        time.sleep(0.05)
        os.kill(os.getpid(), number)


def _is_import(frame: FrameType | None) -> bool:
    """Whether Python is importing a module where ``frame`` is at work."""
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


@contextmanager
def stopped_by_signals(*, at_end: bool) -> Iterator[None]:
    """SIGTERM, SIGUSR2 and SIGINT raise in the block, wherever they arrive; a second one is ignored.

    ``at_end``: the process ends after the block, and signals stay ignored, so that its exit code is what the block
    decided. In a destructor or a callback of a weak reference Python drops what is raised: the signal is then sent once
    more. An error that ends the block within :data:`TEARDOWN` seconds is what became of it on its way, in C code or in
    a clean-up.
    """
    shown = sys.unraisablehook

    def dropped(unraisable: sys.UnraisableHookArgs) -> None:
        if not issubclass(unraisable.exc_type, Terminated | KeyboardInterrupt):
            shown(unraisable)
            return
        again = getattr(unraisable.exc_value, "signal", signal.SIGINT)  # of a plain KeyboardInterrupt
        stop.dropping = True
        threading.Thread(target=send, args=(again,), daemon=True).start()
        stop.dropping = False  # nothing follows in which the signal could arrive and be dropped again

    def send(number: int) -> None:
        while stop.dropping:
            time.sleep(0.01)  # a few instructions are waited for
        stop.last = -math.inf
        os.kill(os.getpid(), number)

    sys.unraisablehook = dropped
    stop, numbers = _Stop(), [signal.SIGTERM, signal.SIGUSR2]
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # else a background job, which Ctrl-C does not concern
        numbers.append(signal.SIGINT)
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    except Exception as error:
        if stop.raised is None or not stop.tears_down() or isinstance(error, Preempted | Interrupted):
            raise
        raise stop.raised from error
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if at_end else handler)
        sys.unraisablehook = shown
