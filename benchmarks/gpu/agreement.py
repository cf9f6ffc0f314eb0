"""Part ``agree``: training steps on the device against a CPU's: same job, same views, a few steps of each optimizer.

In float32 the weights' moves must agree to rounding; compiled bfloat16, as runs are, must follow the same losses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.gpu.kit import Kit
from benchmarks.gpu.steps import SKIPLESS, Given
from dinoskip.optim import build_optimizer
from dinoskip.runtime.distributed import World
from dinoskip.training import DinoConfig, PretrainJob
from dinoskip.training.compilation import Compiler
from dinoskip.training.dino import DINO
from dinoskip.training.objective import Engine, Step

STEPS, BATCH = 6, 8
OPTIMIZERS: Mapping[str, Mapping[str, int]] = {
    "adamw": {},
    "soap": {"precondition_frequency": 2},
    "klshampoo": {"precondition_frequency": 2},
    "muon": {},
    "ecs": {"precondition_frequency": 2, "max_precond_dim": 64},
}
BOTH = ("adamw", "soap")
"""Optimizers whose steps are taken without skips, too."""


class Taken(NamedTuple):
    """Losses of the steps, and how the student's weights moved over all of them, float32 (P,), on the CPU."""

    losses: list[float]
    move: Tensor

    def against(self, other: Taken) -> dict[str, float]:
        """Return the distance to another: of the moves relative to the other's length, of the losses the largest."""
        error = float((self.move - other.move).norm() / other.move.norm())
        apart = max(abs(a - b) for a, b in zip(self.losses, other.losses, strict=True))
        return {"relative": error, "largest_loss_difference": apart, "loss": self.losses[-1]}


def job(optimizer: Mapping[str, Any], *, skip: bool) -> PretrainJob:
    """Three blocks, so that a CPU takes the steps in seconds."""
    model = {"name": "vit_tiny_patch16", "img_size": 64, "depth": 3, "drop_path": 0, **({} if skip else SKIPLESS)}
    recipe = {
        "out_dim": 256, "hidden_dim": 64, "bottleneck_dim": 32, "batch_size": BATCH, "freeze_last_layer": 0,
        "epochs": 4, "warmup_epochs": 0, "crops": {"global_size": 64, "local_size": 32, "num_local": 4},
    }  # fmt: skip
    return PretrainJob.model_validate({"seed": 1, "model": model, "optimizer": optimizer, "pretrain": recipe})


def take(what: PretrainJob, device: torch.device, *, fast: bool = False) -> Taken:
    """Take the steps on a device, in float32, or (``fast``) compiled and in bfloat16."""
    generator = torch.Generator().manual_seed(0)
    counts = ((2 * BATCH, 64), (4 * BATCH, 32))
    views = [torch.randn(count, 3, side, side, generator=generator).to(device) for count, side in counts]
    assert isinstance(what.pretrain, DinoConfig)  # the default objective
    dino, here, loader = DINO(what, what.pretrain, 10, device), World(0, 1, device), Given(views)
    if fast:
        compiler = Compiler()
        for network in dino.networks.values():
            compiler.compile_(network, here)
    optimizer = build_optimizer(dino.student, what.optimizer)
    engine = Engine(dino.student, dino.student, optimizer, loader, here, seed=0, bf16=fast)
    start, losses = _weights(dino), []
    for number in range(STEPS):
        step = Step(engine, number, iter([loader.batch]))
        dino.step(step)
        losses.append(float(step.means["loss"]))
    return Taken(losses, _weights(dino) - start)


def _weights(dino: DINO) -> Tensor:
    return torch.cat([p.detach().flatten().cpu() for p in dino.student.parameters()])


def run(kit: Kit) -> None:
    """Compare each optimizer's steps; at tiny sizes of the first one alone."""
    for name, settings in OPTIMIZERS.items():
        for skip in (True, False) if name in BOTH else (True,):
            if not kit.has(5) or (kit.tiny and name != "adamw"):
                return
            label = f"{name}, {'with' if skip else 'without'} skips"
            with kit.attempt(label):
                asked = job({"name": name, **settings}, skip=skip)
                here = take(asked, torch.device("cpu"))
                kit.say(f"moves in float32, {label}", **take(asked, kit.device).against(here))
                if name == "adamw":
                    fast = take(asked, kit.device, fast=True)
                    kit.say(f"compiled bfloat16 against float32, {label}", **fast.against(here))
