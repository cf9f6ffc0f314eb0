"""Says which of the two a run waits for, its images or its computing, and what may help."""

from __future__ import annotations

import os
from typing import Literal

SLIGHT = 0.05  # of the time: waiting below this is not worth a change


def verdict(
    data_wait: float, *, mode: Literal["crops", "decode", "resident"] | None, workers: int = 0, cores: int = 0
) -> str:
    """Return one line on where a step's time goes.

    Args:
        data_wait: share of the time that steps waited for their images, 0 to 1 (``data_wait`` of metrics.jsonl).
        mode: of the data path; None where there is no choice.
        workers: processes that read images for this rank.
        cores: processors they may use; 0 counts them.
    """
    if data_wait < SLIGHT:
        return f"compute-bound: steps wait for their images {data_wait:.0%} of the time"
    cores = cores or len(os.sched_getaffinity(0))
    advice = []
    if mode == "resident":
        advice.append("another mode than resident would wait longer; a larger batch spreads what is left")
    else:
        if workers < cores:
            advice.append(f"more workers: {workers} of {cores} processors read")
        if mode == "crops":
            advice.append("mode decode, which cuts crops on the device")
        if mode is not None:
            advice.append("smaller images by dinoskip data pack, or mode resident if they then fit")
    return f"data waits: {data_wait:.0%} of the time steps wait for their images" + (
        f" (try {'; '.join(advice)})" if advice else ""
    )
