"""Learning rates of linear heads over a training, as factors on the base rate, by the public code of each protocol."""

from __future__ import annotations

import math
from typing import Literal

RateSchedule = Literal["cosine", "cosine by epoch", "one cycle", "quarter cosine"]
# Of the schedule, where a linear warm-up begins: mmcv's warmup_ratio in DINOv2's depth configurations.
_WARM_FROM = 1e-3
_CYCLE_LAST = 1 / (25 * 1000)  # of the highest rate, where one cycle ends: DINOv3's WarmupOneCycleLR
_LOW_MOMENTUM, _HIGH_MOMENTUM = 0.85, 0.95  # of DINOv3's depth recipe, as torch's OneCycleLR has them
_QUARTER_FLOOR = 0.01  # of the highest rate, where probe3d's schedule begins and ends


def rate_factor(schedule: RateSchedule, done: int, steps: int, warmup: float = 0.0, epoch_steps: int = 1) -> float:
    """Return the factor on the learning rate of the step after ``done`` of ``steps``.

    ``warmup`` is the share of the steps in which it rises. ``cosine``: from 1 to 0, in the warm-up × a line from 0.001
    to 1 (mmcv). ``cosine by epoch``: constant in every pass of ``epoch_steps`` steps (DINO). ``one cycle``: DINOv3's
    WarmupOneCycleLR, to 1 / 25,000. ``quarter cosine``: a line from 0.01 to 1, then a quarter of a cosine's period to
    0.01 (probe3d).
    """
    rising = warmup * steps
    if schedule == "quarter cosine":
        if done <= rising:
            return (1 - _QUARTER_FLOOR) * (done / rising if rising else 1.0) + _QUARTER_FLOOR
        part = (done - rising) / (steps - rising)
        return (1 - _QUARTER_FLOOR) * math.cos(0.5 * math.pi * part) + _QUARTER_FLOOR
    line = _WARM_FROM + (1 - _WARM_FROM) * done / rising if done < rising else 1.0
    if schedule == "one cycle":
        if done < rising:
            return line * (1 - done / steps)
        return _CYCLE_LAST + (1 - _CYCLE_LAST) * _cosine((done + 1) / steps)
    if schedule == "cosine by epoch":
        epochs = -(-steps // epoch_steps)
        return line * _cosine((done // epoch_steps) / epochs)
    return line * _cosine(done / steps)


def cycled_momentum(done: int, steps: int, warmup: float) -> float:
    """Return Adam's first beta of one cycle: 0.95 while the rate rises, then from 0.85 to 0.95.

    (The public class gives 0 while the rate rises, which no description has.)
    """
    rising = warmup * steps
    if done < rising:
        return _HIGH_MOMENTUM
    return _HIGH_MOMENTUM + (_LOW_MOMENTUM - _HIGH_MOMENTUM) * _cosine((done - rising) / (steps - rising))


def _cosine(part: float) -> float:
    return 0.5 * (1 + math.cos(math.pi * part))
