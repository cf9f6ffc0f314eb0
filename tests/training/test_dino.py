"""Whole updates against a plain float64 re-implementation, and the schedules."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from dinoskip.data.loader import Batch
from dinoskip.models.heads import DINOHead
from dinoskip.optim import AdamWConfig, build_optimizer
from dinoskip.runtime.distributed import World
from dinoskip.training import PretrainJob
from dinoskip.training.dino import DINO, DinoSchedules, MultiCrop, make_teacher
from dinoskip.training.dino_config import DinoConfig
from dinoskip.training.gradients import clip_each_
from dinoskip.training.objective import Engine, Step
from tests.helpers.dino_reference import double_loop

OUT = 6


def test_clip_uses_each_gradients_own_norm() -> None:
    gradients = [torch.full((4,), 3.0), torch.full((4,), 0.1), torch.zeros(2)]
    clip_each_(gradients, [g.norm().item() for g in gradients], 3.0)
    assert gradients[0].norm().item() == pytest.approx(3.0, rel=1e-5)
    assert gradients[1].norm().item() == pytest.approx(0.2)
    untouched = [torch.full((4,), 30.0)]
    clip_each_(untouched, [60.0], 0.0)
    assert untouched[0].norm().item() == 60.0


class _Backbone(nn.Module):
    """Mean of the pixels per channel, a linear map and a LayerNorm: any image size, in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.norm = nn.Linear(3, 5), nn.LayerNorm(5)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.fc(x.mean((2, 3))))


def _dino(config: DinoConfig, optimizer: AdamWConfig, epoch_steps: int) -> DINO:
    """The objective over small float64 networks; larger weights, so that norms above and below the bound occur."""
    model = {"name": "vit_tiny_patch16", "depth": 1, "img_size": 32}
    job = PretrainJob.model_validate({"model": model, "optimizer": optimizer, "pretrain": config})
    dino = DINO(job, config, epoch_steps, torch.device("cpu"))

    head = DINOHead(5, OUT, hidden_dim=7, bottleneck_dim=4, norm_last_layer=config.norm_last_layer, seed=3)
    torch.manual_seed(0)
    student = MultiCrop(_Backbone().double(), head.double())
    for p in student.parameters():
        p.data.mul_(3.0)
    student.head.last_g.data.fill_(1.0)
    dino.student, dino.teacher = student, make_teacher(student)
    dino.center = torch.zeros(OUT, dtype=torch.float64)
    return dino


class _Views:
    """A loader whose micro-batches are views already."""

    def views(self, batch: Batch) -> list[Tensor]:
        return list(batch.data.values())


def _take(dino: DINO, optimizer: torch.optim.Optimizer, number: int, views: list[Tensor]) -> Step:
    """One step over one micro-batch, as the training loop takes it."""
    loader: Any = _Views()
    engine = Engine(dino.student, dino.student, optimizer, loader, World(0, 1, torch.device("cpu")), seed=0)

    def batches() -> Iterator[Batch]:
        yield Batch(torch.arange(2), dict(zip("gl", views, strict=True)))

    taken = Step(engine, number, batches())
    dino.step(taken)
    return taken


def _functional(p: dict[str, Tensor], x: Tensor) -> Tensor:
    """The same network written out on named tensors."""
    f = x.mean((2, 3)) @ p["backbone.fc.weight"].T + p["backbone.fc.bias"]
    f = (f - f.mean(-1, keepdim=True)) / (f.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    f = f * p["backbone.norm.weight"] + p["backbone.norm.bias"]
    for layer in (0, 2, 4):
        f = f @ p[f"head.mlp.{layer}.weight"].T + p[f"head.mlp.{layer}.bias"]
        f = torch.nn.functional.gelu(f) if layer < 4 else f
    f = f / f.norm(dim=-1, keepdim=True)
    v = p["head.last_v"]
    return (f @ (v / v.norm(dim=-1, keepdim=True)).T) * p["head.last_g"].flatten()


@pytest.mark.parametrize("norm_last_layer", [True, False])
def test_whole_updates_equal_a_plain_reimplementation(norm_last_layer: bool) -> None:
    config = DinoConfig(
        epochs=4, batch_size=2, warmup_epochs=1, out_dim=OUT, clip_grad=0.05, freeze_last_layer=1,
        warmup_teacher_temp_epochs=3, momentum_teacher=0.9, norm_last_layer=norm_last_layer,
    )  # fmt: skip
    adamw = AdamWConfig(lr=2.0, min_lr=1e-3)
    epoch_steps, (b1, b2), eps = 2, adamw.betas, adamw.eps
    dino = _dino(config, adamw, epoch_steps)
    optimizer = build_optimizer(dino.student, adamw)

    p = {name: t.clone() for name, t in dino.student.state_dict().items()}
    q = {name: t.clone() for name, t in p.items()}
    m = {name: torch.zeros_like(t) for name, t in p.items()}
    v = {name: torch.zeros_like(t) for name, t in p.items()}
    count = dict.fromkeys(p, 0)
    center = torch.zeros(OUT, dtype=torch.float64)
    clipped = 0
    for step in range(8):
        rng = torch.Generator().manual_seed(step)
        views = [torch.randn(n, 3, s, s, generator=rng, dtype=torch.float64) for n, s in ((4, 4), (6, 2))]
        taken = _take(dino, optimizer, step, views)

        # the same step, plainly, from docs/protocols.md
        lr = 2.0 * 2 / 256 * step / 1 if step < 2 else None
        if lr is None:
            lr = 1e-3 + 0.5 * (2.0 * 2 / 256 - 1e-3) * (1 + math.cos(math.pi * (step - 2) / 6))
        wd = 0.4 + 0.5 * (0.04 - 0.4) * (1 + math.cos(math.pi * step / 8))
        ema = 1.0 + 0.5 * (0.9 - 1.0) * (1 + math.cos(math.pi * step / 8))
        temp = min(0.07, 0.04 + 0.015 * (step // 2))
        leaves = {name: t.clone().requires_grad_() for name, t in p.items()}
        out_t = torch.cat([_functional(q, view) for view in views[:1]])
        loss = double_loop(torch.cat([_functional(leaves, x) for x in views]), out_t, center, 0.1, temp)
        loss.backward()
        for name, leaf in leaves.items():
            last = name.startswith("head.last")
            if (name == "head.last_g" and norm_last_layer) or (last and step < 2):
                continue
            g = leaf.grad
            clipped += bool(g.norm() > 0.05)
            g = g * min(1.0, 0.05 / (g.norm().float().item() + 1e-6))  # norms are reported in float32
            decay = wd if g.ndim > 1 and not name.endswith("bias") else 0.0
            count[name] += 1
            p[name] = p[name] * (1 - lr * decay)
            m[name] = b1 * m[name] + (1 - b1) * g
            v[name] = b2 * v[name] + (1 - b2) * g * g
            m_hat, v_hat = m[name] / (1 - b1 ** count[name]), v[name] / (1 - b2 ** count[name])
            p[name] = p[name] - lr * m_hat / (v_hat.sqrt() + eps)
        q = {name: ema * t + (1 - ema) * p[name] for name, t in q.items()}
        center = 0.9 * center + 0.1 * out_t.mean(0)

        assert taken.means["loss"].item() == pytest.approx(loss.item(), rel=1e-10)
        for name in p:
            torch.testing.assert_close(dino.student.state_dict()[name], p[name], rtol=1e-8, atol=1e-10, msg=name)
            torch.testing.assert_close(dino.teacher.state_dict()[name], q[name], rtol=1e-8, atol=1e-10, msg=name)
        torch.testing.assert_close(dino.center, center, rtol=1e-9, atol=1e-12)
    assert 5 < clipped < 8 * len(p) - 5, "both clipped and unclipped gradients must occur"
    gains = [network.head.last_g for network in (dino.student, dino.teacher)]
    assert [bool((gain == 1.0).all()) for gain in gains] == [norm_last_layer] * 2, "trained, the teacher's follows"


def test_teacher_starts_equal_and_has_no_gradients_nor_noise() -> None:
    dino = _dino(DinoConfig(out_dim=OUT, norm_last_layer=False), AdamWConfig(), 1)
    for name, value in dino.student.state_dict().items():
        torch.testing.assert_close(dino.teacher.state_dict()[name], value, rtol=0, atol=0)
    assert not any(p.requires_grad for p in dino.teacher.parameters())
    assert not any(module.training for module in dino.teacher.modules())


def test_schedules_scale_the_learning_rate_by_the_batch_and_freeze_whole_epochs() -> None:
    config = DinoConfig(epochs=20, batch_size=1024, warmup_epochs=10, freeze_last_layer=2)
    schedules = DinoSchedules(config, AdamWConfig(lr=5e-4), 7)
    rates = [schedules.at(step) for step in range(140)]
    assert rates[0].lr == 0.0
    assert rates[70].lr == pytest.approx(2e-3)
    assert [r.freeze_last_layer for r in rates] == [True] * 14 + [False] * 126
    assert rates[0].weight_decay == pytest.approx(0.04)
    assert rates[0].momentum == pytest.approx(0.996)
    assert np.all(np.diff([r.momentum for r in rates]) > 0)
    assert len({r.teacher_temp for r in rates[:7]}) == 1


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"warmup_epochs": 5}, "must be less than epochs"),
        ({"keep_epochs": (6,)}, "outside 1..epochs"),
        ({"lr": 1}, "Extra inputs"),
    ],
)
def test_recipes_that_cannot_be_are_refused(change: dict[str, object], text: str) -> None:
    with pytest.raises(ValidationError, match=text):
        DinoConfig(**{"epochs": 5, "warmup_epochs": 1, **change})
