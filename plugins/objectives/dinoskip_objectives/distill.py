"""Distillation: a student whose dense and CLS features must be those of frozen teachers, of the same crop.

Heads, one set a teacher, map the student's features after its last norm to the teacher's width; they are thrown away.
Losses are lightly-train's, Theia's and AM-RADIO's (:mod:`dinoskip_objectives.feature_losses`), teachers any backbone.
B images a micro-batch, N patches of the student. To read how a step goes: :meth:`Distill.step`.
"""

from __future__ import annotations

from functools import cache, partial
from itertools import pairwise
from typing import NamedTuple

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from dinoskip.data.shards import Source
from dinoskip.models.build import from_config
from dinoskip.models.heads import draw_layers_
from dinoskip.runtime.distributed import all_ranks
from dinoskip.training.calibration import centre_crops, spread
from dinoskip.training.gradients import clip_each_
from dinoskip.training.objective import Objective, Step
from dinoskip.training.rates import Schedules
from dinoskip.training.recipe import Job
from dinoskip_objectives.distill_config import DistillConfig
from dinoskip_objectives.feature_losses import intra_kl, point_loss, queue_kl, resized, update_queue_
from dinoskip_objectives.standardise import Standardisation
from dinoskip_objectives.stored_teacher import StoredTeacher
from dinoskip_objectives.teachers import Teacher, TeacherFeatures, Teaching

# --- one step ----------------------------------------------------------------------------------------


class Distill(Objective):
    """A student that learns the features of frozen teachers."""

    observed = "student"
    by_block = True
    config: DistillConfig

    def __init__(self, job: Job, config: DistillConfig, steps_per_epoch: int, device: torch.device) -> None:
        self.job, self.config = job, config
        self.schedules = Schedules(config, job.optimizer, steps_per_epoch)
        grid = config.crop_size // job.model.patch_size
        self.teachers: list[Teaching] = [
            Teacher(teacher, config.crop_size, device) if teacher.store is None else StoredTeacher(teacher, grid)
            for teacher in config.teachers
        ]
        backbone = job.backbone(device)
        self.student = DistilledNetwork(backbone, self._heads(backbone.embed_dim).to(device)).train()
        self.networks = {"student": self.student}
        self.buffers = {
            f"teachers.{place}.{name}": value
            for place, teacher in enumerate(self.teachers)
            for name, value in teacher.unmeasured(device).items()
        }

    def _heads(self, width: int) -> Heads:
        layers = [width, *[self.config.hidden_dim] * (self.config.head_layers - 1)]
        return Heads(
            {
                f"{place}.{kind}": FeatureHead((*layers, teacher.dim))
                for place, teacher in enumerate(self.teachers)
                for kind in ("patches", "cls")
                if getattr(teacher.config, kind) is not None
            },
            seed=self.job.seed,
        )

    def build_network(self, role: str) -> nn.Module:
        """A backbone and heads of the same architecture."""
        backbone = from_config(self.job.model, weight_init="skip")
        return DistilledNetwork(backbone, self._heads(backbone.embed_dim))

    def look_at(self, images: Source) -> None:
        """Measure the targets on some of the images: what standardises them is the same from the first step on."""
        rows = spread(len(images), self.config.sample)
        crops = cache(partial(centre_crops, images, rows, self.config.crop_size))  # decoded once, if at all
        for place, teacher in enumerate(self.teachers):
            teacher.check(images, rows)
            if not any(teacher.config.whitened):
                continue
            measured = teacher.measured(teacher.sample(rows, crops))
            for name, value in all_ranks().from_main({name: tensor.cpu() for name, tensor in measured.items()}).items():
                self.buffers[f"teachers.{place}.{name}"].copy_(value)

    def step(self, step: Step) -> None:
        """One step, from crops to student and heads."""
        step.begin(self.schedules.at(step.number))
        for images, *stored in step.micro_batches():  # (B, 3, S, S), and features out of stores
            beside = iter(stored)
            with step.autocast():
                targets = [teacher.features(images, beside) for teacher in self.teachers]
                mapped = step.forward(images)
            loss, parts = self._loss(mapped, targets)
            step.backward(loss, **parts)
        gradients, norms = step.gradients()
        if step.finite:
            clip_each_(gradients, norms, self.config.clip_grad)
            step.optimizer.step()

    def _loss(self, mapped: Mapped, targets: list[TeacherFeatures]) -> tuple[Tensor, dict[str, Tensor]]:
        """The weighted sum over teachers, and every part of it before its weight."""
        parts: dict[str, Tensor] = {}
        weighted: list[Tensor] = []
        for place, (teacher, target) in enumerate(zip(self.teachers, targets, strict=True)):
            config, end = teacher.config, "" if len(self.teachers) == 1 else f"_{place + 1}"
            if config.patches is not None:
                student = resized(mapped.tokens[f"{place}.patches"], mapped.grid, target.grid)
                parts[f"patches_loss{end}"] = part = self._patches_loss(place, student, target.patches)
                weighted.append(config.weight * config.patches_weight * part)
            if config.cls is not None and target.cls is not None:
                parts[f"cls_loss{end}"] = part = self._cls_loss(place, mapped.tokens[f"{place}.cls"], target.cls)
                weighted.append(config.weight * config.cls_weight * part)
        return torch.stack(weighted).sum(), {name: value.detach() for name, value in parts.items()}

    def _patches_loss(self, place: int, student: Tensor, target: Tensor) -> Tensor:
        config = self.teachers[place].config
        assert config.patches is not None
        if config.patches == "intra_kl":
            return intra_kl(student, target, config.temperature)
        return point_loss(student, self._standardised(place, "patches", target), config.patches, config.cosine_over)

    def _cls_loss(self, place: int, student: Tensor, target: Tensor) -> Tensor:
        config = self.teachers[place].config
        assert config.cls is not None
        if config.cls == "queue_kl":
            queue = self.buffers[f"teachers.{place}.queue"]
            update_queue_(queue, target)
            return queue_kl(student, target, queue, config.temperature)
        return point_loss(student[:, None], self._standardised(place, "cls", target)[:, None], config.cls)

    def _standardised(self, place: int, kind: str, target: Tensor) -> Tensor:
        mean, weight = (self.buffers.get(f"teachers.{place}.{kind}_{name}") for name in ("mean", "weight"))
        return target if mean is None or weight is None else Standardisation(mean, weight)(target)


# --- networks ----------------------------------------------------------------------------------------


class Mapped(NamedTuple):
    """Outputs of the heads for the student's features.

    ``tokens`` are by ``TEACHER.patches`` (B, N, D) and ``TEACHER.cls`` (B, D).
    """

    tokens: dict[str, Tensor]
    grid: tuple[int, int]


class FeatureHead(nn.Sequential):
    """Linear layers of these widths, LayerNorm and GELU between them."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        layers: list[nn.Module] = [nn.Linear(widths[0], widths[1])]
        for width, following in pairwise(widths[1:]):
            layers += [nn.LayerNorm(width), nn.GELU(), nn.Linear(width, following)]
        super().__init__(*layers)


class Heads(nn.Module):
    """A head a teacher and kind of token. Weights depend on ``seed`` alone: truncated normal (0.02), biases zero."""

    def __init__(self, heads: dict[str, FeatureHead], *, seed: int = 0) -> None:
        super().__init__()
        self.of = nn.ModuleDict({name.replace(".", "_"): head for name, head in heads.items()})
        draw_layers_(self, seed)

    def forward(self, patches: Tensor, cls: Tensor) -> dict[str, Tensor]:
        """Map patches (B, N, C) and CLS tokens (B, C), each by the heads that are of it."""
        heads = {name.replace("_", "."): head for name, head in self.of.items()}
        return {name: head(cls if name.endswith("cls") else patches) for name, head in heads.items()}


class DistilledNetwork(nn.Module):
    """A backbone and the heads on its patches and CLS token, after the last norm."""

    def __init__(self, backbone: VisionTransformer, head: Heads) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head

    def forward(self, images: Tensor) -> Mapped:
        """Map images (B, 3, H, W)."""
        tokens, patch = self.backbone.forward_features(images), self.backbone.patch_embed.patch_size[0]
        mapped = self.head(tokens[:, self.backbone.num_prefix_tokens :], tokens[:, 0])
        return Mapped(mapped, (images.shape[2] // patch, images.shape[3] // patch))
