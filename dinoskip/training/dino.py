"""DINO (Caron et al. 2021, arXiv:2104.14294), whole: settings, schedules, networks, loss, and one step in its order.

V student views (2 global, then the local ones) of B images each are stacked view-major: (V*B, ...). K is the
number of prototypes (``out_dim``). Semantics follow facebookresearch/dino (docs/protocols.md). To read how a step
goes, begin with :meth:`DINO.step`.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from dinoskip.models.build import from_config
from dinoskip.models.heads import DINOHead
from dinoskip.optim.config import OptimizerConfig
from dinoskip.optim.schedules import cosine, linear_then_constant
from dinoskip.runtime.distributed import all_reduce_mean, local
from dinoskip.training.dino_config import DinoConfig
from dinoskip.training.gradients import clip_each_
from dinoskip.training.guard import CollapseAlarm
from dinoskip.training.objective import Objective, Step
from dinoskip.training.rates import Rates, Schedules
from dinoskip.training.recipe import Job
from dinoskip.training.teacher_student import TeacherStudentConfig

# Scores in work at a time: on a CPU what stays in its cache, on a GPU what fills it.
CHUNK_CPU, CHUNK_GPU = 1 << 20, 1 << 24


# --- one step ----------------------------------------------------------------------------------------


class DINO(Objective):
    """A student that learns, from other views of an image, what its moving average, the teacher, says of it."""

    observed = "teacher"
    config: DinoConfig

    def __init__(self, job: Job, config: DinoConfig, steps_per_epoch: int, device: torch.device) -> None:
        self.job, self.config = job, config
        self.schedules = DinoSchedules(config, job.optimizer, steps_per_epoch)
        self.student, self.teacher = build_networks(job, config, device)
        self.center = torch.zeros(config.out_dim, device=device)
        self.networks = {"student": self.student, "teacher": self.teacher}
        self.buffers = {"center": self.center}
        self.alarm = CollapseAlarm(config.out_dim)

    def build_network(self, role: str) -> nn.Module:
        """A backbone and head of the student's or teacher's architecture."""
        backbone = from_config(self.job.model, weight_init="skip")
        return MultiCrop(backbone, _head(self.job, self.config, self.job.model.width))

    def step(self, step: Step) -> None:
        """One DINO step, from the views of its images to teacher and centre."""
        config, rates = self.config, self.schedules.at(step.number)
        step.begin(rates)
        for views in step.micro_batches():  # [(2*B, 3, S, S), (L*B, 3, s, s)]
            loss, values = self.loss(step, views, rates)
            step.backward(loss, **values)
        if rates.freeze_last_layer:  # without a gradient it is neither updated nor decayed
            for parameter in self.student.head.last_layer_parameters():
                parameter.grad = None
        gradients, norms = step.gradients()
        if step.finite:  # main_dino.py moves the centre before it looks at the loss; here such a step leaves no trace
            clip_each_(gradients, norms, config.clip_grad)
            step.optimizer.step()
            update_teacher(self.averaged, rates.momentum)
            update_center(self.center, step.means["batch_center"], config.center_momentum)

    def loss(self, step: Step, views: list[Tensor], rates: DinoRates) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of a micro-batch, and what is logged of it."""
        with step.autocast():
            with torch.no_grad():
                teacher = self.teacher(views[0])  # (2*B, K): the teacher sees the global views alone
            student = step.forward(*views)  # (V*B, K)
        loss = dino_loss(student, teacher, self.center, self.config.student_temp, rates.teacher_temp)
        return loss.loss, {"teacher_entropy": loss.entropy, "batch_center": loss.batch_center}

    @cached_property
    def averaged(self) -> list[tuple[Tensor, Tensor]]:
        """Teacher's and student's parameters; paired at the first update, since sharding replaces a module's."""
        pairs = zip(self.teacher.parameters(), self.student.parameters(), strict=True)
        return [(local(teacher), local(student.detach())) for teacher, student in pairs]


@torch.no_grad()
def update_teacher(averaged: Sequence[tuple[Tensor, Tensor]], momentum: float) -> None:
    """Move each of the teacher's parameters towards the student's: m * teacher + (1 - m) * student, in place."""
    torch._foreach_lerp_([teacher for teacher, _ in averaged], [student for _, student in averaged], 1.0 - momentum)


@torch.no_grad()
def update_center(center: Tensor, batch_center: Tensor, momentum: float) -> None:
    """Move the centre (K,) towards the mean over all ranks of the teacher's scores in this step, in place."""
    center.lerp_(all_reduce_mean(batch_center), 1.0 - momentum)


# --- the loss ----------------------------------------------------------------------------------------


class LossOutcome(NamedTuple):
    """The loss and what the teacher's part leaves; all in at least float32."""

    loss: Tensor  # scalar, differentiable once in the student's scores
    batch_center: Tensor  # (K,) mean of the teacher's scores
    entropy: Tensor  # scalar, mean entropy of the teacher's targets in nats: 0 = one-hot, ln K = uniform


def dino_loss(
    student: Tensor, teacher: Tensor, center: Tensor, student_temp: float, teacher_temp: float
) -> LossOutcome:
    """Mean cross-entropy over all (teacher view, student view) pairs of different views, and over images.

    ``student`` (V*B, K) and ``teacher`` (2*B, K) are scores, view-major, the two global views first; ``center`` (K,).
    The targets are ``softmax((teacher - center) / teacher_temp)``. Each student view's log-softmax is taken once and
    meets the sum of its targets: a global view the other global view's, a local view both. Scores in bfloat16 are
    worked on in float32, float64 in float64. The gradient is given once: a second backward pass is an error.
    Call it outside autocast.
    """
    return LossOutcome(*_Loss.apply(student, teacher, center, student_temp, teacher_temp))


def _cross_entropy(target: Tensor, scores: Tensor, probabilities: Tensor, mass: int) -> Tensor:
    """Sum of -target * log softmax(scores), where each row of ``target`` sums to ``mass``.

    The softmax is at hand, and gives each row's log-sum-exp through its largest element: no second pass of exp.
    """
    normaliser = scores.amax(-1) - probabilities.amax(-1).log()
    return mass * normaliser.sum() - torch.dot(target.flatten(), scores.flatten())


class _Loss(torch.autograd.Function):
    """The loss with its gradient made in the same pass.

    Autograd on the plain formulation keeps several float32 tensors of the size of all student scores: with 10 views of
    64 images and 65,536 prototypes, 168 MB each. Here a few rows are taken at a time through softmax, loss and
    gradient, and only the gradient is kept, in the dtype of the scores.
    """

    @staticmethod
    def forward(
        ctx: Any, student: Tensor, teacher: Tensor, center: Tensor, student_temp: float, teacher_temp: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        batch, out = teacher.shape[0] // 2, student.shape[1]
        views, teachers = student.reshape(-1, batch, out), teacher.reshape(2, batch, out)
        work = torch.promote_types(student.dtype, torch.float32)
        terms = batch * (2 * len(views) - 2)
        # A tensor of one dimension, unlike a scalar, lifts bfloat16 scores to the work dtype in the same kernel.
        temp = student.new_full((1,), student_temp, dtype=work)
        scale = 1 / (student_temp * terms)
        gradient = torch.empty_like(views) if ctx.needs_input_grad[0] else None
        loss, entropy, total = (student.new_zeros(shape, dtype=work) for shape in ((), (), (out,)))
        step = max(1, (CHUNK_CPU if student.device.type == "cpu" else CHUNK_GPU) // out)
        for low in range(0, batch, step):
            rows = slice(low, low + step)
            scores = teachers[:, rows].to(work)
            total += scores.sum((0, 1))
            scores = (scores - center.to(work)) / teacher_temp
            targets = F.softmax(scores, dim=-1)
            entropy += _cross_entropy(targets, scores, targets, 1)
            both = targets.sum(0)
            for index, view in enumerate(views):
                target, mass = (targets[1 - index], 1) if index < 2 else (both, 2)
                scores = view[rows] / temp
                probabilities = F.softmax(scores, dim=-1)
                loss += _cross_entropy(target, scores, probabilities, mass)
                if gradient is not None:
                    torch.sub(probabilities.mul_(mass * scale), target, alpha=scale, out=gradient[index, rows])
        ctx.gradient = None if gradient is None else gradient.view_as(student)
        loss, entropy, total = loss / terms, entropy / (2 * batch), total / (2 * batch)
        ctx.mark_non_differentiable(total, entropy)
        return loss, total, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_loss: Tensor, *_: Any) -> tuple[Tensor, None, None, None, None]:
        if ctx.gradient is None:
            raise RuntimeError("dino_loss gives its gradient once; compute the loss anew for another backward pass")
        gradient, ctx.gradient = ctx.gradient, None
        return gradient.mul_(grad_loss), None, None, None, None


# --- schedules ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DinoRates(Rates):
    """A step's rates, among them EMA momentum, teacher temperature and whether the last layer is frozen."""

    momentum: float
    teacher_temp: float
    freeze_last_layer: bool


class DinoSchedules(Schedules):
    """Schedules of a run of ``epochs * steps_per_epoch`` steps."""

    def __init__(self, config: TeacherStudentConfig, optimizer: OptimizerConfig, steps_per_epoch: int) -> None:
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
            freeze_last_layer=epoch < self._frozen_epochs,
        )


Network = TypeVar("Network", bound=nn.Module)

# --- networks ----------------------------------------------------------------------------------------


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


def make_teacher(student: Network) -> Network:
    """Return the teacher: a copy of the student that starts equal, draws no noise (eval mode) and has no gradients.

    BatchNorm, which some networks of timm's have, normalises by the batch in it too, as in facebookresearch/dino.
    """
    teacher = copy.deepcopy(student).eval().requires_grad_(False)
    for module in teacher.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.train()
    return teacher


def _head(job: Job, config: DinoConfig, dim: int) -> DINOHead:
    return DINOHead(
        dim, config.out_dim, hidden_dim=config.hidden_dim, bottleneck_dim=config.bottleneck_dim,
        norm_last_layer=config.norm_last_layer, seed=job.seed,
    )  # fmt: skip


def build_networks(job: Job, config: DinoConfig, device: torch.device) -> tuple[MultiCrop, MultiCrop]:
    """Student and teacher at their start; weights depend on ``job.seed`` alone."""
    backbone = job.backbone(device)
    student = MultiCrop(backbone, _head(job, config, job.model.width).to(device)).train()
    return student, make_teacher(student)
