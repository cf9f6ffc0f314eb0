"""iBOT (Zhou et al. 2022, arXiv:2111.07832): DINO's loss on the CLS token, and the same on masked patches.

The student sees the two global views with some patches masked, and says of those what the teacher, which sees the same
view whole, says of them. Semantics follow bytedance/ibot (docs/objectives.md); only scores that the loss needs are
computed. M masked patches of a micro-batch are counted over (2·B, N). To read how a step goes: :meth:`IBOT.step`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from dinoskip.models.build import from_config
from dinoskip.models.heads import DINOHead
from dinoskip.optim.config import OptimizerConfig
from dinoskip.optim.schedules import linear_then_constant
from dinoskip.runtime.distributed import local
from dinoskip.runtime.randomness import torch_rng
from dinoskip.training.dino import (
    CHUNK_CPU,
    CHUNK_GPU,
    DinoRates,
    DinoSchedules,
    dino_loss,
    make_teacher,
    update_center,
    update_teacher,
)
from dinoskip.training.gradients import clip_each_
from dinoskip.training.guard import CollapseAlarm
from dinoskip.training.objective import Objective, Step
from dinoskip.training.recipe import Job
from dinoskip_objectives.ibot_config import IbotConfig
from dinoskip_objectives.masked import masked_tokens

# --- one step ----------------------------------------------------------------------------------------


class IBOT(Objective):
    """A student that says of images and of their masked patches what its moving average, the teacher, says."""

    observed = "teacher"
    by_block = True
    config: IbotConfig

    def __init__(self, job: Job, config: IbotConfig, steps_per_epoch: int, device: torch.device) -> None:
        self.job, self.config = job, config
        self.schedules = IbotSchedules(config, job.optimizer, steps_per_epoch)
        backbone = job.backbone(device)
        self.student = IbotNetwork(backbone, self._head(backbone.embed_dim).to(device)).train()
        self.teacher = make_teacher(self.student)
        self.teacher.head.mask_token = None
        self.networks = {"student": self.student, "teacher": self.teacher}
        self.center = torch.zeros(config.out_dim, device=device)
        self.patch_center = torch.zeros(config.patch_out_dim or config.out_dim, device=device)
        self.buffers = {"center": self.center, "patch_center": self.patch_center}
        self.alarm = CollapseAlarm(config.out_dim, loss="cls_loss")

    def _head(self, width: int) -> IbotHead:
        config = self.config
        return IbotHead(
            width, config.out_dim, config.patch_out_dim, hidden_dim=config.hidden_dim,
            bottleneck_dim=config.bottleneck_dim, norm_last_layer=config.norm_last_layer, seed=self.job.seed,
        )  # fmt: skip

    def build_network(self, role: str) -> nn.Module:
        """A backbone and head of the student's or teacher's architecture."""
        backbone = from_config(self.job.model, weight_init="skip")
        network = IbotNetwork(backbone, self._head(backbone.embed_dim))
        if role == "teacher":
            network.head.mask_token = None
        return network

    def step(self, step: Step) -> None:
        """One step, from the views of its images and their masks to teacher and centres."""
        config, rates = self.config, self.schedules.at(step.number)
        step.begin(rates)
        for tensors in step.micro_batches():  # (2*B, 3, S, S), (L*B, 3, s, s), masks
            loss, values = self.loss(step, tensors, rates)
            step.backward(loss, **values)
        if rates.freeze_last_layer:
            for parameter in self.student.head.last_layer_parameters():
                parameter.grad = None
        gradients, norms = step.gradients()
        if step.finite:  # as DINO.step: the reference moves the centres within the loss, before any check
            clip_each_(gradients, norms, config.clip_grad)
            step.optimizer.step()
            update_teacher(self.averaged, rates.momentum)
            update_center(self.center, step.means["batch_center"], config.center_momentum)
            update_center(self.patch_center, step.means["batch_patch_center"], config.center_momentum)

    def loss(self, step: Step, tensors: list[Tensor], rates: IbotRates) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of a micro-batch, and what is logged of it."""
        config, (views, *locals_, masks, masked, weights) = self.config, tensors
        with step.autocast():
            with torch.no_grad():
                teacher = self.teacher(views, masked)
            student = step.forward(views, masked, masks, *locals_)
        cls = dino_loss(student.cls, teacher.cls, self.center, config.student_temp, rates.teacher_temp)
        patches = patch_loss(
            student.patches, teacher.patches, self.patch_center, weights, config.student_temp, rates.teacher_patch_temp
        )
        return config.cls_weight * cls.loss + config.patch_weight * patches, {
            "cls_loss": cls.loss.detach(), "patch_loss": patches.detach(), "teacher_entropy": cls.entropy,
            "batch_center": cls.batch_center, "batch_patch_center": teacher.mean,
        }  # fmt: skip

    @cached_property
    def averaged(self) -> list[tuple[Tensor, Tensor]]:
        """Teacher's and student's parameters of one name; paired at the first update, since sharding replaces them."""
        student = dict(self.student.named_parameters())
        return [(local(mean), local(student[name].detach())) for name, mean in self.teacher.named_parameters()]


# --- the loss on patches -----------------------------------------------------------------------------


def patch_loss(
    student: Tensor, teacher: Tensor, center: Tensor, weights: Tensor, student_temp: float, teacher_temp: float
) -> Tensor:
    """Weighted sum of the cross-entropies of M patches, in at least float32, differentiable once in ``student``.

    ``student`` and ``teacher`` (M, P) are scores of the same patches, ``center`` (P,), ``weights`` (M,). The targets
    are ``softmax((teacher - center) / teacher_temp)``. Call it outside autocast.
    """
    loss: Tensor = _PatchLoss.apply(student, teacher, center, weights, student_temp, teacher_temp)
    return loss


class _PatchLoss(torch.autograd.Function):
    """The loss with its gradient made in the same pass, a few rows at a time, as in :func:`dino_loss`."""

    @staticmethod
    def forward(
        ctx: Any, student: Tensor, teacher: Tensor, center: Tensor, weights: Tensor, student_temp: float,
        teacher_temp: float,
    ) -> Tensor:  # fmt: skip
        work = torch.promote_types(student.dtype, torch.float32)
        gradient, loss = torch.empty_like(student), student.new_zeros((), dtype=work)
        step = max(1, (CHUNK_CPU if student.device.type == "cpu" else CHUNK_GPU) // student.shape[1])
        for low in range(0, len(student), step):
            rows = slice(low, low + step)
            weight = weights[rows].to(work)
            targets = F.softmax((teacher[rows].to(work) - center.to(work)) / teacher_temp, dim=-1)
            scores = student[rows].to(work) / student_temp
            probabilities = F.softmax(scores, dim=-1)
            normaliser = scores.amax(-1) - probabilities.amax(-1).log()
            loss += torch.dot(weight, normaliser - torch.linalg.vecdot(targets, scores))
            gradient[rows] = probabilities.sub_(targets).mul_((weight / student_temp)[:, None])
        ctx.gradient = gradient
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_loss: Tensor) -> tuple[Tensor, None, None, None, None, None]:
        if ctx.gradient is None:
            raise RuntimeError("patch_loss gives its gradient once; compute the loss anew for another backward pass")
        gradient, ctx.gradient = ctx.gradient, None
        return gradient.mul_(grad_loss), None, None, None, None, None


# --- schedules ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class IbotRates(DinoRates):
    """DINO's rates and the teacher's temperature for patches."""

    teacher_patch_temp: float


class IbotSchedules(DinoSchedules):
    """DINO's schedules, and the temperature for patches, which changes by epoch as well."""

    def __init__(self, config: IbotConfig, optimizer: OptimizerConfig, steps_per_epoch: int) -> None:
        super().__init__(config, optimizer, steps_per_epoch)
        self._patch_temperature: np.ndarray = linear_then_constant(
            config.warmup_teacher_patch_temp, config.teacher_patch_temp, config.epochs,
            config.warmup_teacher_temp_epochs,
        )  # fmt: skip

    def at(self, step: int) -> IbotRates:
        """DINO's rates of a step, 0..total-1, and the temperature of patches."""
        return IbotRates(
            **vars(super().at(step)), teacher_patch_temp=float(self._patch_temperature[step // self._steps_per_epoch])
        )


# --- networks ----------------------------------------------------------------------------------------


class IbotHead(DINOHead):
    """DINO's head, whose last layer, or one more of ``patch_out_dim`` prototypes, scores patches; and the mask token.

    The mask token starts at zero. Weights depend on ``seed`` alone, those that DINO's head has are the same.
    """

    mask_token: nn.Parameter | None
    patch_g: Tensor

    def __init__(
        self, in_dim: int, out_dim: int, patch_out_dim: int | None = None, *, norm_last_layer: bool = True,
        bottleneck_dim: int = 256, seed: int = 0, **sizes: int,
    ) -> None:  # fmt: skip
        super().__init__(
            in_dim, out_dim, norm_last_layer=norm_last_layer, bottleneck_dim=bottleneck_dim, seed=seed, **sizes
        )
        self.mask_token = nn.Parameter(torch.zeros(1, in_dim))
        self.shared = patch_out_dim is None
        if patch_out_dim is not None:
            drawn, bound = torch.empty(patch_out_dim, bottleneck_dim), bottleneck_dim**-0.5
            drawn.uniform_(-bound, bound, generator=torch_rng(seed, "init", "head", "patch_v"))
            self.patch_v = nn.Parameter(drawn)
            gain = torch.ones(patch_out_dim, 1)
            if norm_last_layer:
                self.register_buffer("patch_g", gain)
            else:
                self.patch_g = nn.Parameter(gain)

    def unit(self, tokens: Tensor) -> Tensor:
        """Map tokens (n, in_dim) to directions (n, bottleneck_dim), which the last layers score."""
        return F.normalize(self.mlp(tokens), dim=-1)

    def score(self, unit: Tensor) -> Tensor:
        """IbotScores (n, out_dim) of CLS tokens' directions."""
        weight: Tensor = torch._weight_norm(self.last_v, self.last_g, 0)
        return F.linear(unit, weight.to(unit.dtype))

    def score_patches(self, unit: Tensor) -> Tensor:
        """IbotScores (n, P) of patches' directions; a mean of directions gives the mean of scores."""
        if self.shared:
            return self.score(unit)
        weight: Tensor = torch._weight_norm(self.patch_v, self.patch_g, 0)
        return F.linear(unit, weight.to(unit.dtype))

    def last_layer_parameters(self) -> list[nn.Parameter]:
        """Return the last layers' parameters: DINO's head's, and the patches' own."""
        patch_layer = [] if self.shared else [self.patch_v, self.patch_g]
        return super().last_layer_parameters() + [
            parameter for parameter in patch_layer if isinstance(parameter, nn.Parameter)
        ]


class IbotScores(NamedTuple):
    """``cls`` (V·B, K) of all views, ``patches`` (M, P) of masked ones; ``mean`` (P,) over all patches (teacher)."""

    cls: Tensor
    patches: Tensor
    mean: Tensor | None


class IbotNetwork(nn.Module):
    """A backbone and a head on CLS tokens and on those patches that the loss is of."""

    def __init__(self, backbone: VisionTransformer, head: IbotHead) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head

    def forward(self, views: Tensor, masked: Tensor, masks: Tensor | None = None, *local_views: Tensor) -> IbotScores:
        """IbotScores of global views (2·B, 3, S, S), then local ones (L·B, 3, s, s).

        ``masked`` int64 (M,): which patches, counted over (2·B, N), are scored. With ``masks`` bool (2·B, N) they are
        masked in the input, and the mean over all patches is not computed.
        """
        return self.scored(self.tokens(views, masks, local_views), masked, masks is None)

    def tokens(self, views: Tensor, masks: Tensor | None, local_views: Sequence[Tensor]) -> list[Tensor]:
        """Return all tokens (n, 1 + N, C) of the global views after the last norm, then of the local views."""
        tokens = masked_tokens(self.backbone, views, masks, self.head.mask_token)
        return [tokens] + [masked_tokens(self.backbone, view, None, None) for view in local_views]

    def scored(self, tokens: Sequence[Tensor], masked: Tensor, whole: bool) -> IbotScores:
        """Scores of CLS tokens and of the patches ``masked``; the mean over all patches where they are ``whole``."""
        patches = tokens[0][:, self.backbone.num_prefix_tokens :].flatten(0, 1)
        cls, mean = [view[:, 0] for view in tokens], None
        if whole:
            directions = self.head.unit(patches)
            with torch.autocast(patches.device.type, enabled=False):
                work = torch.promote_types(directions.dtype, torch.float32)
                mean = self.head.score_patches(directions.to(work).mean(0, keepdim=True))[0]
            chosen = directions.index_select(0, masked)
        else:
            chosen = self.head.unit(patches.index_select(0, masked))
        return IbotScores(self.head.score(self.head.unit(torch.cat(cls))), self.head.score_patches(chosen), mean)
