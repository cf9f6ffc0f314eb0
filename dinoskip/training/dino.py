"""DINO (Caron et al. 2021, arXiv:2104.14294): the recipe, the loss and one update, as plain functions.

V student views (2 global, then the local ones) of B images each are stacked view-major: (V*B, ...). K is the
number of prototypes (``out_dim``). Semantics follow facebookresearch/dino (docs/protocols.md).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from dinoskip.data.augment import AugmentConfig
from dinoskip.data.crops import CropConfig
from dinoskip.data.multicrop import DataPath
from dinoskip.distributed import all_reduce_mean
from dinoskip.models.heads import DINOHead
from dinoskip.optim.build import OptimizerConfig
from dinoskip.optim.schedules import cosine, linear_then_constant
from dinoskip.optim.sharing import local
from dinoskip.training.dino_loss import dino_loss
from dinoskip.training.recipe import Rates, Schedules, TrainConfig


class PretrainConfig(TrainConfig):
    """The DINO recipe; the defaults are the 300-epoch ViT-S recipe of docs/protocols.md."""

    out_dim: int = Field(65536, ge=2, description="prototypes")
    hidden_dim: int = Field(2048, ge=1, description="width of the head's MLP")
    bottleneck_dim: int = Field(256, ge=1, description="width before the prototypes")
    norm_last_layer: bool = Field(True, description="student's last-layer gain fixed at 1 (the teacher's always is)")
    student_temp: float = Field(0.1, gt=0)
    teacher_temp: float = Field(0.07, gt=0, description="after its warm-up")
    warmup_teacher_temp: float = Field(0.04, gt=0, description="at the first epoch, linear to teacher_temp")
    warmup_teacher_temp_epochs: int = Field(30, ge=0)
    center_momentum: float = Field(0.9, ge=0, le=1)
    momentum_teacher: float = Field(0.996, ge=0, le=1, description="at the first step; cosine to 1")
    clip_grad: float = Field(3.0, ge=0, description="bound on each parameter's own gradient norm; 0 = none")
    freeze_last_layer: int = Field(1, ge=0, description="epochs in which the last layer is not updated")
    crops: CropConfig = CropConfig()
    augment: AugmentConfig = AugmentConfig()
    data_path: DataPath = Field(
        "crops", description="crops: cut by workers; decode: cut on the device; resident: the set in device memory"
    )


# --- schedules ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DinoRates(Rates):
    """Beside learning rate and weight decay: EMA momentum, teacher temperature, last layer frozen or not."""

    momentum: float
    teacher_temp: float
    freeze: bool


class DinoSchedules(Schedules):
    """All schedules of a run of ``epochs * steps_per_epoch`` steps."""

    def __init__(self, config: PretrainConfig, optimizer: OptimizerConfig, steps_per_epoch: int) -> None:
        super().__init__(config, optimizer, steps_per_epoch)
        self._steps_per_epoch, self._frozen_epochs = steps_per_epoch, config.freeze_last_layer
        self._momentum = cosine(config.momentum_teacher, 1.0, config.epochs * steps_per_epoch)
        self._temperature: np.ndarray = linear_then_constant(
            config.warmup_teacher_temp, config.teacher_temp, config.epochs, config.warmup_teacher_temp_epochs
        )

    def at(self, step: int) -> DinoRates:
        """Rates of step 0..total-1. The temperature changes by epoch, all else by step."""
        epoch, common = step // self._steps_per_epoch, super().at(step)
        return DinoRates(
            lr=common.lr,
            weight_decay=common.weight_decay,
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


@dataclass
class Dino:
    """Everything that an update changes, but the optimizer's state."""

    student: MultiCrop
    teacher: MultiCrop
    center: Tensor  # (K,)

    @cached_property
    def averaged(self) -> list[tuple[Tensor, Tensor]]:
        """Teacher's and student's parameters, by name: a gain that only the student trains is the teacher's buffer.

        Found at the first update, since sharding replaces a module's parameters.
        """
        own = dict(self.student.named_parameters())
        pairs = [(parameter, own[name]) for name, parameter in self.teacher.named_parameters()]
        return [(local(mean), local(new.detach())) for mean, new in pairs]


@dataclass(frozen=True)
class Gradients:
    """Outcome of a micro-batch; the gradients themselves are on the student's parameters."""

    loss: Tensor  # scalar
    batch_center: Tensor  # (K,) mean teacher output
    entropy: Tensor  # scalar, mean entropy of the teacher's targets in nats


def compute_gradients(
    dino: Dino,
    forward: nn.Module,
    views: Sequence[Tensor],
    rates: DinoRates,
    config: PretrainConfig,
    autocast: AbstractContextManager[object],
) -> Gradients:
    """Forward and backward of a micro-batch: its share, 1/accumulate, is added to the gradients; nothing else changes.

    ``views`` is (globals,) or (globals, locals); ``forward`` is the student, or the student wrapped in DDP.
    Every micro-batch of a step uses the same centre, so accumulation changes nothing but the order of summation.
    """
    with autocast:
        with torch.no_grad():
            teacher = dino.teacher(views[0])
        student = forward(*views)
    loss, mean, spread = dino_loss(student, teacher, dino.center, config.student_temp, rates.teacher_temp)
    del student, teacher  # room for the backward pass
    torch.autograd.backward(loss / config.accumulate)
    return Gradients(loss.detach(), mean, spread)


def drop_frozen(dino: Dino, rates: DinoRates) -> None:
    """In the frozen epochs, drop the last layer's gradients: it is then neither updated nor decayed."""
    if rates.freeze:
        for parameter in dino.student.head.last_layer_parameters():
            parameter.grad = None


def clip_each_(gradients: list[Tensor], norms: Sequence[float], bound: float) -> None:
    """Scale each gradient to norm ``bound`` at most, by its own norm (not the global one); 0 = leave all.

    ``norms`` are the gradients' norms on the host: they come with the finite test, and spare the scaling of
    the many gradients that are short enough.
    """
    long = [(g, bound / (n + 1e-6)) for g, n in zip(gradients, norms, strict=True) if bound and n + 1e-6 > bound]
    if long:
        torch._foreach_mul_([g for g, _ in long], [scale for _, scale in long])


@torch.no_grad()
def follow(dino: Dino, batch_center: Tensor, momentum: float, center_momentum: float) -> None:
    """What follows the optimizer's step: EMA of the teacher's parameters; EMA of the centre, over all ranks."""
    torch._foreach_lerp_([t for t, _ in dino.averaged], [s for _, s in dino.averaged], 1.0 - momentum)
    dino.center.lerp_(all_reduce_mean(batch_center), 1.0 - center_momentum)
