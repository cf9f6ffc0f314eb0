"""Contrast of patches: a patch must be nearer to the same point of the scene in another crop than to all others.

Two jittered crops of an image overlap. For every patch of one whose centre lies in the other, the other's features are
sampled at that point, bilinearly: its positive; those of all other such patches of the batch are its negatives. The
matching is known from the boxes that were cut, as in VADeR (Pinheiro et al. 2020, arXiv:2011.05499; it has a memory
bank) and PixPro (Xie et al. 2021, arXiv:2011.10043; it has no negatives); the teacher and the queue, which are options,
are DenseCL's (Wang et al. 2021, arXiv:2011.09157; it matches the most similar feature). To read how a step goes:
:meth:`PatchContrast.step`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn import functional as F

from dinoskip.models.build import from_config
from dinoskip.models.heads import draw_layers_
from dinoskip.optim.schedules import cosine
from dinoskip.runtime.distributed import gather_rows, local
from dinoskip.training.dino import make_teacher, update_teacher
from dinoskip.training.gradients import clip_each_
from dinoskip.training.info_nce import Contrast, info_nce
from dinoskip.training.objective import Objective, Step
from dinoskip.training.patch_contrast_config import PatchContrastConfig
from dinoskip.training.rates import Schedules
from dinoskip.training.recipe import Job

# --- one step ----------------------------------------------------------------------------------------


class PatchContrast(Objective):
    """A student whose patches find themselves in another crop, by its own features or those of its moving average."""

    config: PatchContrastConfig

    def __init__(self, job: Job, config: PatchContrastConfig, steps_per_epoch: int, device: torch.device) -> None:
        self.job, self.config = job, config
        self.schedules = Schedules(config, job.optimizer, steps_per_epoch)
        backbone = job.backbone(device)
        self.student = PatchNetwork(backbone, self._head(backbone.embed_dim).to(device)).train()
        self.networks: dict[str, nn.Module] = {"student": self.student}
        if config.momentum_teacher is not None:
            self.networks["teacher"] = make_teacher(self.student)
            self.momentum = cosine(config.momentum_teacher, 1.0, config.epochs * steps_per_epoch)
        self.observed = "teacher" if config.momentum_teacher is not None else "student"
        self.buffers = {"queue": torch.zeros(config.queue, config.out_dim, device=device)} if config.queue else {}

    def _head(self, width: int) -> PatchHead:
        return PatchHead(width, self.config.hidden_dim or 2 * width, self.config.out_dim, seed=self.job.seed)

    def build_network(self, role: str) -> nn.Module:
        """A backbone and head of the same architecture."""
        backbone = from_config(self.job.model, weight_init="skip")
        return PatchNetwork(backbone, self._head(backbone.embed_dim))

    def step(self, step: Step) -> None:
        """One step, from two views of its images to the student, the teacher and the queue."""
        config, queue = self.config, self.buffers.get("queue")
        step.begin(self.schedules.at(step.number))
        for tensors in step.micro_batches():  # (2*B, 3, S, S), and where the views' patches lie in the other
            loss, theirs, values = self.loss(step, tensors)
            step.backward(loss, **values)
        gradients, norms = step.gradients()
        if step.finite:
            clip_each_(gradients, norms, config.clip_grad)
            step.optimizer.step()
            if theirs is not None:
                update_teacher(self.averaged, float(self.momentum[step.number]))
            if theirs is not None and queue is not None:
                update_queue(queue, theirs)

    def loss(self, step: Step, tensors: list[Tensor]) -> tuple[Tensor, Tensor | None, dict[str, Tensor]]:
        """Return a micro-batch's loss, the teacher's patches if there is one, and what is logged."""
        (images, *matches), teacher = tensors, self.networks.get("teacher")
        with step.autocast():
            patches = step.forward(images)  # (2*B, N, C)
            with torch.no_grad():
                others = None if teacher is None else teacher(images)
        loss = contrast(patches, others, matches, self.config.temperature, self.buffers.get("queue"))
        return loss.loss, others, {"accuracy": loss.accuracy}

    @cached_property
    def averaged(self) -> list[tuple[Tensor, Tensor]]:
        """Teacher's and student's parameters; paired at the first update, since sharding replaces a module's."""
        pairs = zip(self.networks["teacher"].parameters(), self.student.parameters(), strict=True)
        return [(local(teacher), local(student.detach())) for teacher, student in pairs]


# --- the loss ----------------------------------------------------------------------------------------


def contrast(
    patches: Tensor, others: Tensor | None, matches: Sequence[Tensor], temperature: float, queue: Tensor | None = None
) -> Contrast:
    """InfoNCE of the first view's patches among the second's and the other way round: the mean of the two.

    Args:
        patches: (2·B, N, C), the student's, view-major; they need not have unit length.
        others: the teacher's, likewise, among which patches find themselves; None: the student's own.
        matches: tokens and weights of :class:`dinoskip.data.correspondence.Matches`, for the first view and the second.
        temperature: by which cosines are divided.
        queue: (Q, C), further negatives.
    """
    work = torch.promote_types(patches.dtype, torch.float32)
    student = patches.flatten(0, 1).to(work)
    keys = student if others is None else others.flatten(0, 1).to(work)
    both = []
    for tokens, weights in (matches[:2], matches[2:]):
        corners = keys.index_select(0, tokens[:, 1:].flatten()).view(*weights.shape, keys.shape[1])
        positives = F.normalize((corners * weights[..., None]).sum(1), dim=-1)
        queries = F.normalize(student.index_select(0, tokens[:, 0]), dim=-1)
        both.append(info_nce(queries, positives, temperature, room=len(student) // 2, negatives=queue))
    return Contrast(*(sum(parts) / 2 for parts in zip(*both, strict=True)))


@torch.no_grad()
def update_queue(queue: Tensor, others: Tensor) -> None:
    """Put the mean patch of every view of all ranks, of unit length, before the queue (Q, C), in place.

    ``others`` (2·B, N, C): the teacher's patches, view-major. Views of an image stay together, images in the order of
    the batch, so that the queue does not depend on the number of ranks.
    """
    means = F.normalize(others.to(queue.dtype).mean(1), dim=-1).view(2, len(others) // 2, -1)
    newest = gather_rows(means.transpose(0, 1).flatten(0, 1))
    queue.copy_(torch.cat([newest, queue])[: len(queue)])


# --- networks ----------------------------------------------------------------------------------------


class PatchHead(nn.Module):
    """An MLP with one hidden layer. Weights depend on ``seed`` alone: truncated normal (0.02), biases zero."""

    def __init__(self, in_dim: int, hidden_dim: int, out_dim: int, *, seed: int = 0) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(in_dim, hidden_dim), nn.GELU(), nn.Linear(hidden_dim, out_dim))
        draw_layers_(self, seed)

    def forward(self, patches: Tensor) -> Tensor:
        """Map features (..., in_dim) to (..., out_dim)."""
        mapped: Tensor = self.mlp(patches)
        return mapped


class PatchNetwork(nn.Module):
    """A backbone and a head on its patches, after the last norm."""

    def __init__(self, backbone: VisionTransformer, head: PatchHead) -> None:
        super().__init__()
        backbone.global_pool = ""  # all tokens, not the CLS token alone
        self.backbone, self.head = backbone, head
        self.prefix = backbone.num_prefix_tokens

    def forward(self, images: Tensor) -> Tensor:
        """Map images (n, 3, S, S) to patches (n, N, out_dim), in raster order."""
        patches: Tensor = self.head(self.backbone(images)[:, self.prefix :])
        return patches
