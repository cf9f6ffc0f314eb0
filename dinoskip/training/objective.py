"""Interface between the training loop and an objective (DINO, supervised): one optimizer step at a time.

The loop owns epochs, files and signals. An objective is one file: its settings, its networks and its loss, and its
``step`` from a batch's images to the last of what it changes. What all steps have in common is a :class:`Step`.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dinoskip.data.ahead import ViewsAhead
from dinoskip.data.loader import Batch, BatchLoader
from dinoskip.data.shards import Source
from dinoskip.data.view_targets import ViewTargets
from dinoskip.diagnostics.live import Row
from dinoskip.optim.build import set_rates
from dinoskip.runtime.distributed import World, all_reduce_max, local
from dinoskip.runtime.heartbeat import ProgressCallback, no_progress
from dinoskip.runtime.precision import bf16_autocast
from dinoskip.runtime.randomness import derive
from dinoskip.training.gradients import gradient_norms, gradients_of, last_only
from dinoskip.training.guard import CollapseAlarm
from dinoskip.training.rates import Rates
from dinoskip.training.recipe import TrainConfig


class Objective(ABC):
    """Networks, and the mathematics of one optimizer step over them.

    Attributes:
        config: its settings.
        networks: by role; ``student`` is the one with gradients. Each has a ``backbone`` (a VisionTransformer)
            and a ``head``.
        observed: the role that is evaluated and exported.
        buffers: other tensors that a step changes, by name.
        alarm: watches the rows that are logged, if there is something to watch for.
        by_block: whether its networks call the blocks of their backbone themselves, and never the backbone.
    """

    config: TrainConfig
    networks: dict[str, nn.Module]
    observed: str
    buffers: dict[str, Tensor]
    alarm: CollapseAlarm | None = None
    by_block: bool = False

    @abstractmethod
    def build_network(self, role: str) -> nn.Module:
        """A network of that role's architecture, whole and on the CPU, whatever its weights."""

    def look_at(self, images: Source) -> None:  # noqa: B027
        """Measure what the loss needs to know of the training images, before the first step; by default nothing."""

    @abstractmethod
    def step(self, step: Step) -> None:
        """Do one optimizer step on ``networks`` and ``buffers``; change nothing if the gradients are not finite."""


class WithLosses(Objective):
    """An objective with losses added to its own: what a part of ``dinoskip.added_losses`` is."""

    @staticmethod
    @abstractmethod
    def overlaps(global_grid: int, local_grid: int, num_local: int) -> ViewTargets:
        """Return overlaps of pairs of a sample's views, which are ``global_grid`` or ``local_grid`` patches a side."""


@dataclass
class Engine:
    """State shared by all steps of a run.

    ``forward`` is the student as :func:`dinoskip.training.parallel.wrap` returns it. ``requests`` says, on this rank,
    which stop signal came (0: none) and whether it is time to save. ``inspect`` measures the student between backward
    pass and update of a step (1, 2, ...) and changes nothing. ``note`` is told step and action as they begin;
    ``patience`` is the longest wait for images, in seconds. On a GPU ``ahead`` makes the views of each micro-batch
    while the network computes with those of the one before.
    """

    student: nn.Module
    forward: nn.Module
    optimizer: torch.optim.Optimizer
    loader: BatchLoader
    here: World
    seed: int
    accumulate: int = 1
    bf16: bool = False
    requests: Callable[[], tuple[int, bool]] = lambda: (0, False)
    inspect: Callable[[int], Row] = lambda _: {}
    note: ProgressCallback = no_progress
    patience: float = 0.0
    ahead: ViewsAhead | None = None


class Step:
    """Optimizer step ``number`` (0, 1, ...): an objective takes it in the order of the methods, the loop logs it.

    Attributes:
        rates: what the schedules give for it.
        ids: numbers of the images of this rank's micro-batches, int64 (B,) each.
        waited: seconds that it waited for images.
        means: of every value given to :meth:`backward`, over micro-batches; ``loss`` is one.
        finite: whether loss and gradients are finite on all ranks; if not, nothing may be changed.
        grad_norm: norm of all gradients together, before any clipping.
        stop, save: the signal by which a rank was asked to stop (0: none), and whether it is time to save.
        inside: diagnostics of the student, if it was time for some.
    """

    rates: Rates
    means: dict[str, Tensor]
    finite: bool
    grad_norm: float
    stop: int
    save: bool
    inside: Row

    def __init__(self, engine: Engine, number: int, batches: Iterator[Batch]) -> None:
        self.engine, self.number, self._batches = engine, number, batches
        self.forward, self.optimizer = engine.forward, engine.optimizer
        self.ids: list[Tensor] = []
        self.waited = 0.0
        self._values: list[dict[str, Tensor]] = []

    def begin(self, rates: Rates) -> None:
        """Set this step's learning rate and weight decay, and drop the gradients of the step before."""
        self.rates = rates
        set_rates(self.optimizer, rates.lr, rates.weight_decay)
        self.optimizer.zero_grad(set_to_none=True)

    def micro_batches(self) -> Iterator[list[Tensor]]:
        """The loader's views of each micro-batch, on the device. Noise (drop path) depends on step and slice alone."""
        engine = self.engine
        for micro in range(engine.accumulate):
            engine.note(self.number + 1, "waiting for images", engine.patience)
            began = time.perf_counter()
            batch, views = (next(self._batches), None) if engine.ahead is None else engine.ahead.take(self._batches)
            self.waited += time.perf_counter() - began
            self.ids.append(batch.ids)
            engine.note(self.number + 1, "forward pass")
            place = engine.here.rank * engine.accumulate + micro
            torch.manual_seed(derive(engine.seed, "noise", self.number, place))
            with last_only(self.forward, micro == engine.accumulate - 1):
                yield engine.loader.views(batch) if views is None else views
            if engine.ahead is not None:  # while the device is at this micro-batch's backward pass
                engine.note(self.number + 1, "waiting for the next images", engine.patience)
                self.waited += engine.ahead.begin(self._batches)

    def autocast(self) -> AbstractContextManager[None]:
        """Around a forward pass: bfloat16, if the run computes in it."""
        return bf16_autocast(self.engine.here.device, self.engine.bf16)

    def backward(self, loss: Tensor, **values: Tensor) -> None:
        """Add a micro-batch's share, 1/accumulate, of the gradient of ``loss``, its mean; scalar ``values`` are logged.

        All micro-batches of a step see the same weights, so accumulation changes the order of summation alone.
        """
        self.engine.note(self.number + 1, "backward pass, gradients exchanged among ranks")
        torch.autograd.backward(loss / self.engine.accumulate)
        self._values.append({"loss": loss.detach(), **values})

    def gradients(self) -> tuple[list[Tensor], list[float]]:
        """The gradients that are there (this rank's slices) and the norms of the whole ones; sets all attributes.

        Every rank gets the same norms. It is the only place at which a step waits for the device.
        """
        engine = self.engine
        self.inside = engine.inspect(self.number + 1)
        engine.note(self.number + 1, "norms of the gradients, agreed among ranks")
        self.means = mean_of(self._values)
        gradients = gradients_of(engine.student)
        norms = gradient_norms(gradients)
        stop, save = engine.requests()
        flags = torch.tensor([0.0, float(stop), float(save)]).to(norms.device, non_blocking=True)
        flags[0] = 1.0 - torch.isfinite(norms.sum() + self.means["loss"]).float()
        bad, stop, save, *values = torch.cat([all_reduce_max(flags), norms.float()]).tolist()
        engine.note(self.number + 1, "update of the weights")
        self.finite, self.stop, self.save = not bad, int(stop), bool(save)
        self.grad_norm = sum(n * n for n in values) ** 0.5
        return [local(gradient) for gradient in gradients], values


@torch.no_grad()
def mean_of(parts: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Mean over micro-batches of every value, in the order of the first part's keys."""
    if len(parts) == 1:
        return parts[0]
    return {name: torch.stack([part[name] for part in parts]).mean(0) for name in parts[0]}
