"""A few DINO steps of a small network on given views, on any device: eager or compiled, float32 or bfloat16."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dinoskip.data.loader import Batch
from dinoskip.optim import build_optimizer
from dinoskip.runtime.distributed import World
from dinoskip.training import PretrainJob
from dinoskip.training.compilation import Compiler
from dinoskip.training.dino import DINO
from dinoskip.training.objective import Engine, Step

BATCH, SIDE, LOCAL, NUM_LOCAL = 4, 32, 16, 2
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adamw": {"name": "adamw"},
    "soap": {"name": "soap", "precondition_frequency": 2},
}
"""Settings of each optimizer that is followed; SOAP's bases are refreshed in every second of so few steps."""


def views_of(swapped: bool = False) -> list[Tensor]:
    """Two global and ``NUM_LOCAL`` local views of ``BATCH`` images, stacked view-major, of normal noise."""
    noise = torch.Generator().manual_seed(0)
    groups = [torch.randn(n, BATCH, 3, side, side, generator=noise) for n, side in ((2, SIDE), (NUM_LOCAL, LOCAL))]
    return [(group.flip(1) if swapped else group).flatten(0, 1) for group in groups]


class GivenViews:
    """A loader that has the same views in every step."""

    def __init__(self, views: list[Tensor]) -> None:
        self.given, self.batch = views, Batch(torch.zeros(1, dtype=torch.int64), {})

    def views(self, batch: Batch) -> list[Tensor]:
        return self.given


class DinoSteps:
    """Steps of one network, taken one by one.

    Attributes:
        losses: of the steps taken.
        compiler: of both networks, None if they are not compiled.
    """

    def __init__(
        self,
        device: torch.device,
        optimizer: str = "adamw",
        *,
        bf16: bool = False,
        compiled: bool = False,
        double: bool = False,
        swapped: bool = False,
    ) -> None:
        """``double``: networks and views in float64. ``swapped``: images in another order, which changes rounding."""
        job = PretrainJob.model_validate({
            "seed": 1, "model": {"name": "vit_mini_patch8", "depth": 2, "img_size": SIDE, "drop_path": 0},
            "optimizer": {**OPTIMIZERS[optimizer], "lr": 1e-2},
            "pretrain": {
                "out_dim": 64, "hidden_dim": 32, "bottleneck_dim": 16, "batch_size": BATCH, "freeze_last_layer": 0,
                "epochs": 4, "warmup_epochs": 0,
                "crops": {"global_size": SIDE, "local_size": LOCAL, "num_local": NUM_LOCAL},
            },
        })  # fmt: skip
        self.dino = DINO(job, job.pretrain, 10, device)
        if double:
            for network in self.dino.networks.values():
                network.double()
            self.dino.center = self.dino.buffers["center"] = self.dino.center.double()
        here = World(0, 1, device)
        self.compiler = Compiler() if compiled else None
        for network in self.dino.networks.values() if self.compiler is not None else ():
            self.compiler.compile_(network, here)
        built = build_optimizer(self.dino.student, job.optimizer)
        dtype = torch.float64 if double else torch.float32
        loader: Any = GivenViews([view.to(device, dtype) for view in views_of(swapped)])
        self.engine = Engine(self.dino.student, self.dino.student, built, loader, here, seed=0, bf16=bf16)
        self.start = self.weights()
        self.losses: list[float] = []
        self._number = 0

    def weights(self) -> Tensor:
        """All parameters of the student, flat, float64, on the CPU."""
        return torch.cat([p.detach().flatten().double().cpu() for p in self.dino.student.parameters()])

    def take(self, count: int = 1) -> None:
        for _ in range(count):
            step = self.step()
            self.losses.append(float(step.means["loss"]))

    def step(self) -> Step:
        """Take the next step; nothing of it is read but what a step reads itself."""
        loader: Any = self.engine.loader
        step = Step(self.engine, self._number, iter([loader.batch]))
        self._number += 1
        self.dino.step(step)
        assert step.finite
        return step

    def moves(self) -> Tensor:
        """Return the change of each parameter by the steps, flat, on the CPU."""
        return self.weights() - self.start


def relative(moves: Tensor, reference: Tensor) -> float:
    """Length of the difference, as a share of the reference's."""
    return float((moves - reference).norm() / reference.norm())
