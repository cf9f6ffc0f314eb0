"""Steps on views that lie in memory: dinoskip's, as `dinoskip pretrain` takes them, and those of the public style."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.kit import Kit
from benchmarks.gpu.public_dino import PublicDino, Shape, Style
from dinoskip.data.loader import Batch, BatchLoader
from dinoskip.optim import build_optimizer
from dinoskip.pipeline.estimate.cards import CARDS, named
from dinoskip.pipeline.estimate.costs import image_flops
from dinoskip.runtime.distributed import World
from dinoskip.runtime.environment import matmul_gflops
from dinoskip.training import DinoConfig, PretrainJob
from dinoskip.training.compilation import Compiler
from dinoskip.training.dino import DINO
from dinoskip.training.objective import Engine, Step

SKIPLESS: Mapping[str, Any] = {"skip": False, "init": {"name": "skipless"}}


@dataclass(frozen=True)
class Sizes:
    """A network by name with its width and heads, prototypes, and the views of an image."""

    model: str = "vit_small_patch16"
    dim: int = 384
    heads: int = 6
    depth: int = 12
    out: int = 65536
    large: int = 224
    small: int = 96
    num_local: int = 8

    @property
    def views(self) -> int:
        """Views of an image."""
        return 2 + self.num_local

    def crops(self, batch: int, device: torch.device) -> list[Tensor]:
        """Random views of a batch, grouped by size."""
        counts = ((2 * batch, self.large), (self.num_local * batch, self.small))
        return [torch.randn(count, 3, side, side, device=device) for count, side in counts]


PAPER = Sizes()
TINY = Sizes("vit_tiny_patch16", 192, 3, 2, 512, 32, 16, 2)


def sizes(kit: Kit) -> Sizes:
    """The paper's sizes, or those for a CPU."""
    return TINY if kit.tiny else PAPER


@dataclass(frozen=True)
class Made:
    """Steps that can be taken: ``take`` one on a batch; floating-point operations of one (None: not counted)."""

    take: Callable[[], object]
    batch: int
    flop: float | None = None
    compiler: Compiler | None = None


class Given(BatchLoader):
    """A loader of one batch whose views are given: nothing is read."""

    def __init__(self, views: list[Tensor]) -> None:
        self.given, self.batch = views, Batch(torch.zeros(1, dtype=torch.int64), {})

    def views(self, batch: Batch) -> list[Tensor]:
        """Return the views that were made beforehand."""
        return self.given


@dataclass(frozen=True)
class Asked:
    """A step of ours: model settings beyond its size, the optimizer with its settings, whether compiled."""

    model: Mapping[str, Any] = field(default_factory=dict)
    optimizer: Mapping[str, Any] = field(default_factory=lambda: {"name": "adamw"})
    compiled: bool = True


def ours(kit: Kit, batch: int, asked: Asked, size: Sizes | None = None) -> Made:
    """A step of dinoskip on ``batch`` images; bfloat16 on a GPU, as runs are."""
    size = size or sizes(kit)
    crops = {"global_size": size.large, "local_size": size.small, "num_local": size.num_local}
    recipe = {
        "out_dim": size.out, "batch_size": batch, "freeze_last_layer": 0, "epochs": 100, "warmup_epochs": 1,
        "crops": crops,
    }  # fmt: skip
    model = {"name": size.model, "img_size": size.large, "depth": size.depth, "drop_path": 0, **asked.model}
    job = PretrainJob.model_validate({"model": model, "pretrain": recipe, "optimizer": dict(asked.optimizer)})
    assert isinstance(job.pretrain, DinoConfig)  # the default objective
    dino = DINO(job, job.pretrain, 100, kit.device)
    here, compiler = World(0, 1, kit.device), None
    if asked.compiled:
        compiler = Compiler()
        for network in dino.networks.values():
            compiler.compile_(network, here)
    loader = Given(size.crops(batch, kit.device))
    optimizer = build_optimizer(dino.student, job.optimizer)
    engine = Engine(dino.student, dino.student, optimizer, loader, here, seed=0, bf16=kit.cuda)
    number = [0]

    def take() -> None:
        number[0] += 1
        step = Step(engine, number[0], iter([loader.batch]))
        dino.step(step)
        if not step.finite:
            raise ValueError("the step's gradient is not finite")

    return Made(take, batch, batch * image_flops(job.model, job.pretrain), compiler)


def public(kit: Kit, batch: int, style: Style) -> Made:
    """A step of the public style on as many images."""
    size = sizes(kit)
    shape = Shape(size.dim, size.heads, size.depth, size=size.large, out=size.out)
    dino, views = PublicDino(kit.device, shape, style), size.crops(batch, kit.device)
    return Made(lambda: dino.step(views, size.views), batch)


class Reporter:
    """Writes what a step takes, by the operations of ours, as shares of the card's own rate and of its peak."""

    def __init__(self, kit: Kit) -> None:
        self.kit = kit
        self.rate = 1e9 * matmul_gflops(kit.device, torch.bfloat16 if kit.cuda else torch.float32)
        name = torch.cuda.get_device_name(kit.device) if kit.cuda else ""
        self.peak = 1e12 * CARDS[named(name) or "h100"].peak("bf16")  # of a card without a data sheet here: an H100's
        self.flop: dict[int, float] = {}
        """Operations by batch: the public style's step has those of ours."""

    def report(self, name: str, made: Made, repeats: int = 12) -> float:
        """Measure a step and write it; return its milliseconds."""
        kit = self.kit
        kit.fresh()
        began = time.perf_counter()
        made.take()
        kit.sync()
        first = time.perf_counter() - began
        took = kit.wall_ms(made.take, repeats)
        facts: dict[str, Any] = {}
        if made.flop is not None:
            self.flop[made.batch] = made.flop
        if (work := self.flop.get(made.batch)) is not None:
            rate = work / took * 1e3
            facts = {"tflops": rate / 1e12, "of_matmul": rate / self.rate, "mfu": rate / self.peak}
        if (compiler := made.compiler) is not None:
            facts |= {"graphs": compiler.graphs, "problem": compiler.problem()}
        images = 1e3 * made.batch / took
        kit.say(name, ms=took, images_s=images, peak_gib=kit.peak_gib(), first_s=first, **facts)
        return took
