"""Many heads in one step against torch's optimizers, one head at a time; schedules against their formulas."""

from __future__ import annotations

import math

import pytest
import torch

from eval.probe.config import ProbeConfig
from eval.probe.optimizer import HeadOptimizer, rate_scale

RATES, DECAYS = (1e-3, 1e-2, 1e-1), (0.0, 0.3, 0.01)


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_every_head_moves_as_it_would_alone(name: str) -> None:
    rng = torch.Generator().manual_seed(0)
    shapes = [(2, 3, 4, 5), (2, 3, 4)]
    parameters = [torch.randn(shape, generator=rng) for shape in shapes]
    alone = [[p[:, head].clone().requires_grad_() for p in parameters] for head in range(3)]
    kinds = {"adamw": torch.optim.AdamW, "sgd": lambda p, **kw: torch.optim.SGD(p, momentum=0.9, **kw)}
    optimizers = [
        kinds[name](mine, lr=rate, weight_decay=decay) for mine, rate, decay in zip(alone, RATES, DECAYS, strict=True)
    ]
    descent = HeadOptimizer(parameters, RATES, DECAYS, name=name)
    for step in range(7):
        gradients, scale = [torch.randn(shape, generator=rng) for shape in shapes], 1 - step / 10
        for head, optimizer in enumerate(optimizers):
            optimizer.param_groups[0]["lr"] = RATES[head] * scale
            for mine, gradient in zip(alone[head], gradients, strict=True):
                mine.grad = gradient[:, head].clone()
            optimizer.step()
        descent.step(gradients, scale)
        for head in range(3):
            for mine, together in zip(alone[head], parameters, strict=True):
                torch.testing.assert_close(together[:, head], mine.detach(), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({}, lambda t: 0.5 * (1 + math.cos(math.pi * t / 40))),
        ({"schedule": "poly"}, lambda t: 1 - t / 40),
        ({"schedule": "poly", "warmup": 0.25}, lambda t: (1 - t / 40) * min(1, max(t / 10, 1e-6))),
        ({"schedule": "step"}, lambda t: 1.0 if t < 32 else 0.1),
        ({"schedule": "constant", "warmup": 0.5}, lambda t: max(min(t / 20, 1), 1e-6)),
    ],
)
def test_schedules(changes: dict, wanted) -> None:
    recipe = ProbeConfig(**changes)
    assert [rate_scale(recipe, t, 40) for t in range(40)] == pytest.approx([wanted(t) for t in range(40)])


def test_cosine_is_torchs() -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=9)
    for t in range(9):
        assert rate_scale(ProbeConfig(), t, 9) == pytest.approx(optimizer.param_groups[0]["lr"], abs=1e-9)
        optimizer.step()
        schedule.step()
