"""DINO (Caron et al. 2021, arXiv:2104.14294): the recipe, the loss and one update, as plain functions.

V student views (2 global, then the local ones) of B images each are stacked view-major: (V*B, ...). K is the
number of prototypes (``out_dim``). Semantics follow facebookresearch/dino (docs/protocols.md).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from dinoskip.config import Config
from dinoskip.data.augment import AugmentConfig
from dinoskip.data.multicrop import CropConfig
from dinoskip.distributed import all_reduce_mean
from dinoskip.models.heads import DINOHead
from dinoskip.optim.build import OptimizerConfig
from dinoskip.optim.schedules import cosine, linear_then_constant

# Settings of PretrainConfig that change no number of a run: they may differ when it is resumed.
FREE_KEYS = ("log_every", "checkpoint_every_minutes", "checkpoint_every_steps", "keep_epochs", "max_nonfinite")


class PretrainConfig(Config):
    """The DINO recipe; the defaults are the 300-epoch ViT-S recipe of docs/protocols.md."""

    epochs: int = Field(300, ge=1)
    batch_size: int = Field(1024, ge=1, description="images a step over all ranks")
    warmup_epochs: int = Field(10, ge=0, description="linear warm-up of the learning rate from 0")
    out_dim: int = Field(65536, ge=2)
    hidden_dim: int = Field(2048, ge=1)
    bottleneck_dim: int = Field(256, ge=1)
    norm_last_layer: bool = Field(True, description="student's last-layer gain fixed at 1 (the teacher's always is)")
    student_temp: float = Field(0.1, gt=0)
    teacher_temp: float = Field(0.07, gt=0)
    warmup_teacher_temp: float = Field(0.04, gt=0)
    warmup_teacher_temp_epochs: int = Field(30, ge=0)
    center_momentum: float = Field(0.9, ge=0, le=1)
    momentum_teacher: float = Field(0.996, ge=0, le=1, description="at the first step; cosine to 1")
    clip_grad: float = Field(3.0, ge=0, description="bound on each parameter's own gradient norm; 0 = none")
    freeze_last_layer: int = Field(1, ge=0, description="epochs in which the last layer is not updated")
    crops: CropConfig = CropConfig()
    augment: AugmentConfig = AugmentConfig()
    keep_epochs: tuple[int, ...] = Field((), description="epochs whose checkpoint is kept, beside the last")
    checkpoint_every_minutes: float = Field(10.0, gt=0)
    checkpoint_every_steps: int | None = Field(None, ge=1)
    log_every: int = Field(10, ge=1, description="steps between rows of metrics.jsonl")
    max_nonfinite: int = Field(10, ge=1, description="non-finite steps in a row that end the run")
    precision: Literal["auto", "fp32", "bf16"] = Field("auto", description="auto: bf16 autocast on a GPU, else fp32")
    compile: Literal["auto"] | bool = Field("auto", description="torch.compile; auto: on a GPU")

    @model_validator(mode="after")
    def _epochs_fit(self) -> PretrainConfig:
        if self.warmup_epochs >= self.epochs and self.warmup_epochs > 0:
            raise ValueError(f"warmup_epochs: {self.warmup_epochs} must be less than epochs ({self.epochs})")
        for epoch in self.keep_epochs:
            if not 1 <= epoch <= self.epochs:
                raise ValueError(f"keep_epochs: {epoch} is outside 1..epochs ({self.epochs})")
        return self


# --- schedules ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rates:
    """What one step uses: learning rate, weight decay, EMA momentum, teacher temperature, last layer frozen or not."""

    lr: float
    weight_decay: float
    momentum: float
    teacher_temp: float
    freeze: bool


class Schedules:
    """All schedules of a run of ``epochs * steps_per_epoch`` steps; :meth:`at` is a pure function of the step."""

    def __init__(self, config: PretrainConfig, optimizer: OptimizerConfig, steps_per_epoch: int) -> None:
        total, warmup = config.epochs * steps_per_epoch, config.warmup_epochs * steps_per_epoch
        peak = optimizer.lr * config.batch_size / 256
        self._steps_per_epoch, self._frozen_epochs = steps_per_epoch, config.freeze_last_layer
        self._lr = cosine(peak, optimizer.min_lr, total, warmup)
        self._decay = cosine(optimizer.weight_decay, optimizer.weight_decay_end, total)
        self._momentum = cosine(config.momentum_teacher, 1.0, total)
        self._temperature: np.ndarray = linear_then_constant(
            config.warmup_teacher_temp, config.teacher_temp, config.epochs, config.warmup_teacher_temp_epochs
        )

    def at(self, step: int) -> Rates:
        """Rates of step 0..total-1. The temperature changes by epoch, all else by step."""
        epoch = step // self._steps_per_epoch
        return Rates(
            lr=float(self._lr[step]),
            weight_decay=float(self._decay[step]),
            momentum=float(self._momentum[step]),
            teacher_temp=float(self._temperature[epoch]),
            freeze=epoch < self._frozen_epochs,
        )


# --- student, teacher, loss --------------------------------------------------------------------------


class MultiCrop(nn.Module):
    """A backbone and a head over views of several sizes: one backbone pass per size, one head pass for all."""

    def __init__(self, backbone: nn.Module, head: DINOHead) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head

    def forward(self, *views: Tensor) -> Tensor:
        """Map batches (n_i, 3, S_i, S_i) to prototype scores (sum n_i, K), in the order given."""
        logits: Tensor = self.head(torch.cat([self.backbone(view) for view in views]))
        return logits


def make_teacher(student: MultiCrop, teacher_head: DINOHead) -> MultiCrop:
    """Return the teacher: a copy of the student that starts equal, draws no noise (eval mode) and has no gradients.

    ``teacher_head`` is a head whose last-layer gain is fixed; it takes over the student head's values.
    """
    teacher_head.load_state_dict(student.head.state_dict())
    return MultiCrop(copy.deepcopy(student.backbone), teacher_head).eval().requires_grad_(False)


def dino_loss(
    student: Tensor, teacher: Tensor, center: Tensor, student_temp: float, teacher_temp: float
) -> tuple[Tensor, Tensor]:
    """Mean cross-entropy over all (teacher view, student view) pairs of different views, and over images.

    ``student`` (V*B, K) and ``teacher`` (2*B, K) are scores, ``center`` (K,). Returns the loss, a scalar in at
    least float32, and the teacher's targets (2, B, K). Each student view's log-softmax is taken once and meets the
    sum of its targets: a global view the other view's, the local views (summed first) both.
    """
    dtype = torch.promote_types(student.dtype, torch.float32)
    batch = teacher.shape[0] // 2
    targets = F.softmax((teacher.to(dtype) - center.to(dtype)) / teacher_temp, dim=-1).view(2, batch, -1)
    scores = F.log_softmax(student.to(dtype) / student_temp, dim=-1).view(-1, batch, student.shape[1])  # (V, B, K)
    total = torch.dot(scores[:2].flatten(), targets.flip(0).flatten())
    total = total + torch.dot(scores[2:].sum(0).flatten(), targets.sum(0).flatten())
    return -total / (batch * (2 * scores.shape[0] - 2)), targets


def entropy(targets: Tensor) -> Tensor:
    """Mean entropy in nats of distributions (..., K): 0 = one-hot, ln K = uniform."""
    return -torch.xlogy(targets, targets).sum(-1).mean()


@dataclass
class Dino:
    """Everything that an update changes, but the optimizer's state."""

    student: MultiCrop
    teacher: MultiCrop
    center: Tensor  # (K,)

    def __post_init__(self) -> None:
        # The EMA acts on parameters by name: a gain that only the student trains is a buffer of the teacher.
        own = dict(self.student.named_parameters())
        self.averaged = [(parameter, own[name]) for name, parameter in self.teacher.named_parameters()]


@dataclass(frozen=True)
class Gradients:
    """Outcome of the first half of a step; the gradients themselves are on the student's parameters."""

    loss: Tensor  # scalar
    batch_center: Tensor  # (K,) mean teacher output over all ranks
    targets: Tensor  # (2, B, K)


def compute_gradients(
    dino: Dino,
    forward: nn.Module,
    views: Sequence[Tensor],
    rates: Rates,
    config: PretrainConfig,
    autocast: AbstractContextManager[object],
) -> Gradients:
    """Forward and backward; nothing but gradients changes.

    ``views`` is (globals,) or (globals, locals); ``forward`` is the student, or the student wrapped in DDP.
    In the frozen epochs the last layer's gradients are dropped, so that it is neither updated nor decayed.
    """
    with autocast:
        with torch.no_grad():
            teacher = dino.teacher(views[0])
        student = forward(*views)
    loss, targets = dino_loss(student, teacher, dino.center, config.student_temp, rates.teacher_temp)
    torch.autograd.backward(loss)
    if rates.freeze:
        for parameter in dino.student.head.last_layer_parameters():
            parameter.grad = None
    return Gradients(loss.detach(), all_reduce_mean(teacher.to(dino.center.dtype).mean(0)), targets)


def gradients_of(module: nn.Module) -> list[Tensor]:
    """The gradients that are there."""
    return [parameter.grad for parameter in module.parameters() if parameter.grad is not None]


def clip_each_(gradients: list[Tensor], norms: Sequence[float], bound: float) -> None:
    """Scale each gradient to norm ``bound`` at most, by its own norm (not the global one); 0 = leave all.

    ``norms`` are the gradients' norms on the host: they come with the finite test, and spare the scaling of
    the many gradients that are short enough.
    """
    long = [(g, bound / (n + 1e-6)) for g, n in zip(gradients, norms, strict=True) if bound and n + 1e-6 > bound]
    if long:
        torch._foreach_mul_([g for g, _ in long], [scale for _, scale in long])


@torch.no_grad()
def apply_update(
    dino: Dino, optimizer: torch.optim.Optimizer, batch_center: Tensor, momentum: float, center_momentum: float
) -> None:
    """Second half of a step: optimizer, EMA of the teacher's parameters, centre. Gradients are clipped before."""
    optimizer.step()
    torch._foreach_lerp_([t for t, _ in dino.averaged], [s for _, s in dino.averaged], 1.0 - momentum)
    dino.center.lerp_(batch_center, 1.0 - center_momentum)
