"""Decay towards the start: with every optimizer it is the plain optimizer on the distance from there."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
import torch
from torch import Tensor, nn

from dinoskip.optim import build_optimizer
from dinoskip.optim.config import AdamWConfig, AnyOptimizer
from dinoskip.training import pretrain
from dinoskip.training.objectives import PretrainJob
from tests.helpers.tiny import objective_job, rows_of, tensor_hashes
from tests.training.test_resume import folder, killed_before

KINDS = get_args(AnyOptimizer)


def network(start: Tensor | None = None) -> nn.Module:
    """A block-like network in float64 with weights that lie ``start`` away from zero."""
    model = nn.ModuleDict(
        {"blocks": nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6)]), "head": nn.Linear(6, 3)}
    ).double()
    with torch.no_grad():
        for index, parameter in enumerate(model.parameters()):
            rng = torch.Generator().manual_seed(index)
            parameter.copy_(torch.randn(parameter.shape, generator=rng, dtype=torch.float64))
            if start is None and parameter.ndim > 1:
                parameter.zero_()
    return model


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_it_is_the_plain_optimizer_on_the_distance(kind: type[AdamWConfig]) -> None:
    """Gradients are given, so that nothing but decay depends on where the weights are."""
    start, pulled, plain = network(torch.ones(())), network(torch.ones(())), network()
    optimizers = [
        build_optimizer(model, kind(lr=0.1, weight_decay=0.5, decay_to=to))
        for model, to in ((pulled, "init"), (plain, "zero"))
    ]
    for step in range(6):
        for model, optimizer in zip((pulled, plain), optimizers, strict=True):
            for index, parameter in enumerate(model.parameters()):
                rng = torch.Generator().manual_seed(100 * step + index)
                parameter.grad = torch.randn(parameter.shape, generator=rng, dtype=torch.float64)
            if step == 3:
                model["head"].weight.grad = None  # a frozen layer is left where it is
            optimizer.step()
    for (name, value), other, begun in zip(
        pulled.named_parameters(), plain.parameters(), start.parameters(), strict=True
    ):
        distance = value - begun if value.ndim > 1 else value
        torch.testing.assert_close(distance, other, rtol=1e-6, atol=1e-6, msg=name)
        assert value.ndim < 2 or not torch.equal(value, begun)


def test_without_gradient_weights_come_back_to_the_start() -> None:
    model = network(torch.ones(()))
    begun = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = build_optimizer(model, AdamWConfig(lr=0.1, weight_decay=1.0, decay_to="init"))
    with torch.no_grad():
        model["head"].weight += 1.0
    for _ in range(10):
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
    torch.testing.assert_close(model["head"].weight - begun[4], torch.full((3, 6), 0.9**10, dtype=torch.float64))
    torch.testing.assert_close(model["blocks"][0].weight, begun[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("optimizer", ["adamw", pytest.param("soap", marks=pytest.mark.slow)])
def test_a_killed_run_ends_with_the_bits_of_a_straight_one(
    optimizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = objective_job("patch_contrast", optimizer).model_dump(mode="json")
    jobs = {}
    for to in ("init", "zero"):
        tree["optimizer"] |= {"decay_to": to, "weight_decay": 0.5, "weight_decay_end": 0.5}
        jobs[to] = PretrainJob.model_validate(tree)
    straight = pretrain(jobs["init"], folder(), tmp_path / "straight", device="cpu")
    for step in (3, 6):
        killed_before(step, jobs["init"], tmp_path / "run", monkeypatch)
    assert tensor_hashes(pretrain(jobs["init"], folder(), tmp_path / "run", device="cpu")) == tensor_hashes(straight)
    pretrain(jobs["zero"], folder(), tmp_path / "zero", device="cpu")
    assert rows_of(tmp_path / "zero")[-1]["loss"] != rows_of(tmp_path / "run")[-1]["loss"]
