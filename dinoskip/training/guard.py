"""What stops or warns a run: signals, non-finite steps in a row, collapse."""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Mapping
from types import FrameType
from typing import Any

PREEMPT, INTERRUPT = 1, 2
_MEANING = {signal.SIGTERM: PREEMPT, signal.SIGUSR2: PREEMPT, signal.SIGINT: INTERRUPT}


class StopSignals:
    """While open, SIGINT, SIGTERM and SIGUSR2 only set :attr:`requested`; the loop acts at a step boundary.

    A second Ctrl-C raises KeyboardInterrupt at once. The handlers found are put back at the end. Outside the
    main thread (where Python allows no handlers) nothing is installed.
    """

    def __init__(self) -> None:
        self.requested = 0  # 0, PREEMPT or INTERRUPT
        self._previous: dict[int, Any] = {}

    def _handle(self, number: int, _: FrameType | None) -> None:
        meaning = _MEANING[signal.Signals(number)]
        if meaning == INTERRUPT and self.requested == INTERRUPT:
            raise KeyboardInterrupt
        self.requested = max(self.requested, meaning)

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            self._previous = {int(number): signal.signal(number, self._handle) for number in _MEANING}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


class CollapseAlarm:
    """Says "collapse" when the loss sits at ln(out_dim), or the teacher's entropy at 0 or ln(out_dim), for long.

    ``update`` takes one logged row, with loss and teacher entropy in nats. Both extremes are within 1 % of
    ln(out_dim); ``patience`` rows in a row are needed, since every run starts near ln(out_dim).
    """

    def __init__(self, out_dim: int, patience: int = 50) -> None:
        self.ceiling, self.patience = math.log(out_dim), patience
        self._rows = {"loss": 0, "sharp": 0, "flat": 0}

    def update(self, row: Mapping[str, Any]) -> str | None:
        """Return what is wrong as of this row (``loss``, ``teacher_entropy``), or None."""
        loss, entropy = row["loss"], row["teacher_entropy"]
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
