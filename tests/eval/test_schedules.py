"""Schedules against torch's own, plain restatements of the public classes, and their ends."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from eval.schedules import cycled_momentum, rate_factor


def test_cosines_are_torchs() -> None:
    weight = torch.nn.Parameter(torch.zeros(1))
    for schedule, every in (("cosine", 1), ("cosine by epoch", 5)):
        optimizer = torch.optim.SGD([weight], lr=1.0)
        theirs = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40 // every)
        for done in range(40):
            if done and done % every == 0:
                optimizer.step()
                theirs.step()
            ours = rate_factor(schedule, done, 40, epoch_steps=every)
            assert ours == pytest.approx(optimizer.param_groups[0]["lr"], abs=1e-9)


def test_warm_up_is_mmcvs() -> None:
    """LrUpdaterHook: (1 - k) of the regular rate, k = (1 - step / warm-up steps) (1 - ratio), ratio 0.001."""
    for done in range(90):
        regular = 0.5 * (1 + math.cos(math.pi * done / 90))
        wanted = regular * (1 - (1 - done / 30) * (1 - 1e-3)) if done < 30 else regular
        assert rate_factor("cosine", done, 90, 1 / 3) == pytest.approx(wanted, abs=1e-12)


def test_one_cycle_rises_falls_and_moves_the_momentum() -> None:
    rates = [rate_factor("one cycle", done, 300, 1 / 3) for done in range(300)]
    assert rates[0] == pytest.approx(1e-3)
    assert rates[299] == pytest.approx(1 / 25_000)
    assert rates[150] == pytest.approx(1 / 25_000 + (1 - 1 / 25_000) * 0.5 * (1 + math.cos(math.pi * 151 / 300)))
    assert np.all(np.diff(rates[100:]) < 0)
    momenta = [cycled_momentum(done, 300, 1 / 3) for done in range(300)]
    assert momenta[:100] == [0.95] * 100
    assert momenta[100] == pytest.approx(0.85)
    assert momenta[299] == pytest.approx(0.95, abs=1e-3)


def test_quarter_cosine_is_probe3ds() -> None:
    for done in range(100):
        wanted = 0.99 * done / 15 + 0.01 if done <= 15 else 0.99 * math.cos(0.5 * math.pi * (done - 15) / 85) + 0.01
        assert rate_factor("quarter cosine", done, 100, 0.15) == pytest.approx(wanted, abs=1e-12)
