"""Differences and verdicts as text."""

from __future__ import annotations

import math

from dinoskip.results.estimates import Difference

ROUNDED = 0.05
"""Percent points: what is below prints as 0.0 and has no sign."""


def signed(value: float) -> str:
    """``+5.2``, ``−0.3``, ``0.0``."""
    return "0.0" if abs(value) < ROUNDED else f"{value:+.1f}".replace("-", "−")


def points(apart: Difference | None) -> str:
    """``+5.2 [+1.1, +9.0]`` of a difference in percentage points, and whether it is unpaired; nothing of none."""
    if apart is None:
        return ""
    value, low, high = map(signed, (apart.value, apart.low, apart.high))
    interval = "" if math.isnan(apart.low) or apart.unsure else f" [{low}, {high}]"
    return value + interval + ("" if apart.paired else ", images fixed" if apart.seeds else ", unpaired")
