"""Ten steps of an objective beside a plain re-implementation: the loop written out, and one that drives ours."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dinoskip.data.loader import Batch
from dinoskip.io.files import save_tensors
from dinoskip.optim import build_optimizer
from dinoskip.runtime.distributed import World, all_reduce_mean
from dinoskip.settings.config import RawConfig, validate
from dinoskip.training import PretrainJob
from dinoskip.training.checkpoint import whole_state
from dinoskip.training.objective import Engine, Objective, Step
from dinoskip.training.parallel import shard, wrap

Values = dict[str, Tensor]


@dataclass
class PlainTraining:
    """A loss on named tensors, each gradient clipped by its own norm (bound 0: not), AdamW and its schedules."""

    values: Values
    loss: Callable[[Values, int], Tensor]
    lr: float
    min_lr: float
    decay: tuple[float, float]
    warmup: int
    total: int
    clip: float
    betas: tuple[float, float] = (0.9, 0.999)
    fixed: frozenset[str] = frozenset()  # names of tensors that are not trained
    undecayed: Callable[[str, Tensor], bool] = lambda name, value: value.ndim < 2 or name.endswith("bias")

    def __post_init__(self) -> None:
        self.values = {name: value.clone() for name, value in self.values.items()}
        self.moments = {name: [torch.zeros_like(value)] * 2 for name, value in self.values.items()}
        self.updates = dict.fromkeys(self.values, 0)

    def step(self, number: int) -> float:
        """One update; return the loss before it."""
        leaves = {name: value.clone().requires_grad_(name not in self.fixed) for name, value in self.values.items()}
        loss = self.loss(leaves, number)
        loss.backward()
        after = number - self.warmup
        share = (1 + math.cos(math.pi * after / (self.total - self.warmup))) / 2
        lr = self.lr * number / (self.warmup - 1) if after < 0 else self.min_lr + (self.lr - self.min_lr) * share
        decay = self.decay[1] + (self.decay[0] - self.decay[1]) * (1 + math.cos(math.pi * number / self.total)) / 2
        for name, leaf in leaves.items():
            if leaf.grad is None:
                continue
            self.updates[name] += 1
            gradient = leaf.grad * (min(1.0, self.clip / (float(leaf.grad.norm()) + 1e-6)) if self.clip else 1.0)
            for place, (beta, power) in enumerate(zip(self.betas, (gradient, gradient**2), strict=True)):
                self.moments[name][place] = beta * self.moments[name][place] + (1 - beta) * power
            first, second = (
                moment / (1 - beta ** self.updates[name])
                for moment, beta in zip(self.moments[name], self.betas, strict=True)
            )
            kept = 1 if self.undecayed(name, leaf) else 1 - lr * decay
            self.values[name] = self.values[name] * kept - lr * first / (second.sqrt() + 1e-8)
        return loss.item()


class _GivenViews:
    def views(self, batch: Batch) -> list[Tensor]:
        return [batch.data[str(place)] for place in range(len(batch.data))]


def job_of(**tree: Any) -> PretrainJob:
    """A job of these settings."""
    return validate(PretrainJob, RawConfig(tree))


class Driver:
    """Our steps of an objective in float64 on views that a test gives."""

    def __init__(self, job: PretrainJob, steps_per_epoch: int, here: World | None = None) -> None:
        here = here or World(0, 1, torch.device("cpu"))
        self.objective: Objective = job.pretrain.build(job, steps_per_epoch, here.device)
        for network in self.objective.networks.values():
            network.double()
        for name, value in list(self.objective.buffers.items()):
            self.objective.buffers[name] = value.double()
            if hasattr(self.objective, name):
                setattr(self.objective, name, self.objective.buffers[name])
        self.job = job
        self.student = self.objective.networks["student"]
        self.optimizer = build_optimizer(self.student, job.optimizer)
        loader: Any = _GivenViews()
        self.engine = Engine(self.student, self.student, self.optimizer, loader, here, job.seed)

    def write_steps(self, out: str, images: int, views: Callable[[int, slice], list[Tensor]], steps: int = 4) -> None:
        """Spread the networks over the ranks, take steps on this rank's part of the images and write what they leave.

        Rank 0 writes the mean losses over ranks and all tensors of networks and buffers; collective.
        """
        here, strategy = self.engine.here, self.job.pretrain.parallel
        for role, network in self.objective.networks.items():
            if role != "student":
                shard(network, here, strategy)
        forward = wrap(self.student, here, strategy)
        self.optimizer = build_optimizer(self.student, self.job.optimizer)
        self.engine = replace(self.engine, forward=forward, optimizer=self.optimizer)
        share = images // here.size
        part = slice(share * here.rank, share * (here.rank + 1))
        losses = [self.step(step, views(step, part)).means["loss"] for step in range(steps)]
        tensors = {f"loss.{step}": all_reduce_mean(loss.clone())[None] for step, loss in enumerate(losses)}
        for role, network in self.objective.networks.items():
            tensors |= {f"{role}.{name}": value for name, value in whole_state(network).items()}
        tensors |= {name: value.clone() for name, value in self.objective.buffers.items()}
        if here.is_main:
            save_tensors(Path(out), tensors)

    def values(self) -> Values:
        """The student's tensors by name."""
        return {name: value.clone() for name, value in self.student.state_dict().items()}

    def step(self, number: int, views: list[Tensor]) -> Step:
        """Take step ``number``."""
        batch = Batch(torch.arange(1), {str(place): view for place, view in enumerate(views)})
        taken = Step(self.engine, number, iter([batch]))
        self.objective.step(taken)
        return taken
