"""What the training loop asks of a recipe (DINO, supervised), and the settings that every recipe has.

The loop owns steps, ranks, files and signals; a recipe owns networks, schedules, the loss and what follows an update.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from typing import Any, Literal, Protocol

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from dinoskip.config import Config
from dinoskip.data.loader import Batch, Images
from dinoskip.distributed import World
from dinoskip.optim.build import OptimizerConfig
from dinoskip.optim.schedules import cosine
from dinoskip.training.boards import BoardName

# Settings of TrainConfig that may differ when a run is resumed, as the number of ranks may. They change no number; the
# last two change the order of sums, and, unless ranks x accumulate stays the same, which draws drop path gets.
FREE_KEYS = (
    "log_every", "checkpoint_every_minutes", "checkpoint_every_steps", "keep_epochs", "max_nonfinite", "online_every",
    "diagnose_every", "boards", "accumulate", "parallel",
)  # fmt: skip


class TrainConfig(Config):
    """Settings of every recipe: length, batch, what is kept and written, and how it is computed."""

    epochs: int = Field(300, ge=1)
    batch_size: int = Field(1024, ge=1, description="images a step over all ranks and micro-batches")
    warmup_epochs: float = Field(10, ge=0, description="linear warm-up of the learning rate from 0; may be a fraction")
    keep_epochs: tuple[int, ...] = Field((), description="epochs whose checkpoint is kept, beside the last")
    checkpoint_every_minutes: float = Field(10.0, gt=0)
    checkpoint_every_steps: int | None = Field(None, ge=1, description="as well; null: by time alone")
    log_every: int = Field(10, ge=1, description="steps between rows of metrics.jsonl")
    online_every: int = Field(0, ge=0, description="epochs between evaluations while training; 0 = none")
    diagnose_every: int = Field(0, ge=0, description="steps between rows of diagnostics.jsonl; 0 = none")
    boards: tuple[BoardName, ...] = Field((), description="where rows of metrics.jsonl are shown as well")
    max_nonfinite: int = Field(10, ge=1, description="non-finite steps in a row that end the run")
    accumulate: int = Field(1, ge=1, description="micro-batches a step, on every rank: fewer GPUs, the same batch")
    parallel: Literal["ddp", "fsdp"] = Field("ddp", description="whole copies on every rank, or shards (FSDP2)")
    precision: Literal["auto", "fp32", "bf16"] = Field("auto", description="auto: bf16 autocast on a GPU, else fp32")
    compile: Literal["auto"] | bool = Field("auto", description="torch.compile; auto: on a GPU")

    @model_validator(mode="after")
    def _epochs_fit(self) -> TrainConfig:
        if self.warmup_epochs >= self.epochs and self.warmup_epochs > 0:
            raise ValueError(f"warmup_epochs: {self.warmup_epochs} must be less than epochs ({self.epochs})")
        for epoch in self.keep_epochs:
            if not 1 <= epoch <= self.epochs:
                raise ValueError(f"keep_epochs: {epoch} is outside 1..epochs ({self.epochs})")
        return self


@dataclass(frozen=True)
class Rates:
    """What one step uses: learning rate, weight decay, and in subclasses whatever else is scheduled."""

    lr: float
    weight_decay: float

    def logged(self) -> dict[str, float]:
        """Names and values for a row of metrics.jsonl: every field that is a number."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            "wd" if name == "weight_decay" else name: value
            for name, value in values.items()
            if not isinstance(value, bool)
        }


class Schedules:
    """Learning rate (linear warm-up from 0, cosine) and weight decay (cosine between its two values) by step."""

    def __init__(self, config: TrainConfig, optimizer: OptimizerConfig, steps_per_epoch: int) -> None:
        total, warmup = config.epochs * steps_per_epoch, round(config.warmup_epochs * steps_per_epoch)
        self._lr = cosine(optimizer.lr * config.batch_size / 256, optimizer.min_lr, total, warmup)
        self._decay = cosine(optimizer.weight_decay, optimizer.weight_decay_end, total)

    def at(self, step: int) -> Rates:
        """Rates of step 0..total-1: a pure function of the step."""
        return Rates(lr=float(self._lr[step]), weight_decay=float(self._decay[step]))


class Loader(Protocol):
    """One rank's micro-batches; :class:`dinoskip.data.multicrop.TrainLoader` is one."""

    steps_per_epoch: int
    images: Images
    bad: dict[str, str]  # images that could not be read: name -> reason

    def epoch(self, epoch: int, start_step: int = 0) -> Iterator[Batch]:
        """Micro-batches of an epoch from a step on, ``accumulate`` of them a step."""

    def views(self, batch: Batch) -> list[Tensor]:
        """What the network is given, on the device."""

    def note(self, bad: tuple[tuple[str, str], ...]) -> None:
        """Add images (name, reason) to ``bad``; :class:`DataError` if they are too many."""

    def explained(self) -> AbstractContextManager[None]:
        """Around all that is done with batches: errors of what reads ahead are turned into :class:`DataError`."""

    def close(self) -> None:
        """End what reads ahead."""


class Alarm(Protocol):
    """Watches logged rows."""

    def update(self, row: Mapping[str, Any]) -> str | None:
        """Return what is wrong as of this row, or None."""


class Observer(Protocol):
    """Evaluates a network while it trains, on every rank; the same numbers for the same weights."""

    score: str  # the measure, more is better, that tells the best checkpoint

    def __call__(self, network: nn.Module, here: World) -> dict[str, float]:
        """Measures of ``network`` (eval mode, on ``here.device``) by name, equal on all ranks."""


class Recipe(ABC):
    """Networks and the mathematics of one update.

    Attributes:
        config: its settings.
        networks: by role; ``student`` is the one with gradients. Each has a ``backbone`` (a VisionTransformer)
            and a ``head``.
        observed: the role that is evaluated and exported.
        buffers: other tensors that an update changes, by name.
        loader: the micro-batches.
        names: of the images, by the numbers in ``Batch.ids``.
        verdict: says in a line what a run waits for, given the share of time that steps waited for images.
        alarm: watches the rows that are logged, if there is something to watch for.
    """

    config: TrainConfig
    networks: dict[str, nn.Module]
    observed: str
    buffers: dict[str, Tensor]
    loader: Loader
    names: Sequence[str]
    verdict: Callable[[float], str]
    alarm: Alarm | None = None

    @abstractmethod
    def fresh(self, role: str) -> nn.Module:
        """A network of that role's architecture, whole and on the CPU, whatever its weights."""

    @abstractmethod
    def rates(self, step: int) -> Rates:
        """What step 0, 1, ... uses: a pure function of the step."""

    @abstractmethod
    def backward(
        self, forward: nn.Module, batch: Batch, rates: Rates, autocast: AbstractContextManager[object]
    ) -> dict[str, Tensor]:
        """Forward and backward of a micro-batch: adds to the gradients 1/accumulate of its own, changes nothing else.

        Returns ``loss`` and other values whose mean over micro-batches and ranks is meant; scalars are logged.
        """

    @abstractmethod
    def drop_gradients(self, rates: Rates) -> None:
        """Remove gradients that this step must not use, once all micro-batches are done."""

    @abstractmethod
    def clip(self, gradients: list[Tensor], norms: list[float]) -> None:
        """Bound the gradients; ``norms`` are those of the whole parameters, on the host."""

    @abstractmethod
    def after_update(self, means: Mapping[str, Tensor], rates: Rates) -> None:
        """What follows the optimizer's step; ``means`` are :meth:`backward`'s values, meant over micro-batches."""


def gradients_of(module: nn.Module) -> list[Tensor]:
    """The gradients that are there, in the order of the parameters."""
    return [parameter.grad for parameter in module.parameters() if parameter.grad is not None]


@torch.no_grad()
def mean_of(parts: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Mean over micro-batches of every value, in the order of the first part's keys."""
    if len(parts) == 1:
        return parts[0]
    return {name: torch.stack([part[name] for part in parts]).mean(0) for name in parts[0]}
