"""DINO, iBOT and patch contrast with losses added (:mod:`dinoskip_objectives.addends`), and with Sinkhorn centring.

Each is the objective as its own file has it, but for the networks, which give the tokens as well, and for the loss of a
micro-batch.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dinoskip.models.vit import Vit
from dinoskip.runtime.distributed import all_ranks, all_reduce_max
from dinoskip.runtime.precision import at_least_float32
from dinoskip.training.addends_config import AddendsConfig
from dinoskip.training.dino import DINO, DinoRates, MultiCrop, dino_loss, make_teacher
from dinoskip.training.dino_config import DinoConfig
from dinoskip.training.guard import CollapseAlarm
from dinoskip.training.objective import Step, WithLosses
from dinoskip.training.patch_contrast import PatchContrast, PatchNetwork, contrast
from dinoskip.training.recipe import Job
from dinoskip.training.teacher_student import Centering
from dinoskip_objectives.addends import SNAPSHOT, Addends, Outputs, Places, outputs_of
from dinoskip_objectives.ibot import IBOT, IbotNetwork, IbotRates, patch_loss
from dinoskip_objectives.ibot_config import IbotConfig
from dinoskip_objectives.overlaps import Overlaps

ITERATIONS = 3  # SwAV's and DINOv2's
LEAST = -80.0  # logarithm of the least share that a prototype is given: float32 holds its exponential


@torch.no_grad()
def sinkhorn(scores: Tensor, temperature: float, iterations: int = ITERATIONS) -> Tensor:
    """Logarithms of the shares (n, K) that n samples give to K prototypes, from the teacher's ``scores`` (n, K).

    As in SwAV (arXiv:2006.09882) and facebookresearch/dinov2 ``dino_clstoken_loss.py`` @b8931f7, in logarithms: scores
    may be of any size.
    exp(scores / temperature) is divided by each prototype's sum over all samples of all ranks, then by each sample's
    sum, ``iterations`` times, so that every sample's shares sum to 1. Ranks may have different numbers of samples.
    """
    shares = at_least_float32(scores) / temperature
    for _ in range(iterations):
        shares = shares - _log_sum_of_samples(shares)
        shares = shares - shares.logsumexp(1, keepdim=True)
    return shares


def _log_sum_of_samples(shares: Tensor) -> Tensor:
    """ln of the sum of exp over the samples (n, K) of all ranks: (1, K)."""
    if all_ranks().size == 1:
        return shares.logsumexp(0, keepdim=True)
    least = torch.finfo(shares.dtype).min
    highest = shares.amax(0) if len(shares) else torch.full_like(shares[:0].sum(0), least)
    highest = all_reduce_max(highest.contiguous())
    total = (shares - highest).exp().sum(0)
    dist.all_reduce(total)
    return (highest + total.log())[None]


class CentredTargets(NamedTuple):
    """Scores, centre and temperature, such that softmax((scores - centre) / temperature) are a teacher's targets."""

    scores: Tensor
    centre: Tensor
    temperature: float


def targets(scores: Tensor, centre: Tensor, temperature: float, centering: Centering) -> CentredTargets:
    """Return the teacher's arguments of :func:`dinoskip.training.dino.dino_loss`, for either way of centring."""
    if centering == "centre":
        return CentredTargets(scores, centre, temperature)
    return CentredTargets(sinkhorn(scores, temperature).clamp_min(LEAST), torch.zeros_like(centre), 1.0)


class TokensMultiCrop(MultiCrop):
    """DINO's network, which gives tokens, too."""

    def forward(self, *views: Tensor, places: Places | None = None) -> Outputs:  # type: ignore[override]
        """Scores (sum n_i, K) of all views, and the global crops' tokens."""
        backbone: Any = self.backbone
        tokens = [backbone.forward_features(view) for view in views]
        return outputs_of(self, self.head(torch.cat([view[:, 0] for view in tokens])), tokens, places)


class TokensIbot(IbotNetwork):
    """iBOT's network, which gives tokens, too."""

    def forward(  # type: ignore[override]
        self, views: Tensor, masked: Tensor, masks: Tensor | None = None, *local_views: Tensor,
        places: Places | None = None,
    ) -> Outputs:  # fmt: skip
        """Scores as of iBOT's, and the global crops' tokens, of which some are ``masked``."""
        tokens = self.tokens(views, masks, local_views)
        return outputs_of(self, self.scored(tokens, masked, masks is None), tokens, places)


class TokensPatch(PatchNetwork):
    """Patch contrast's network, which gives tokens, too."""

    def forward(self, images: Tensor, places: Places | None = None) -> Outputs:  # type: ignore[override]
        """Mapped patches (n, N, out_dim), and tokens."""
        tokens = self.backbone.forward_features(images)
        return outputs_of(self, self.head(tokens[:, self.prefix :]), [tokens], places)


class Extended(WithLosses):
    """Base of the three objectives with addends: networks that return tokens, addends, and a snapshot after a step."""

    network: type[nn.Module]
    addends: Addends

    student: Any
    teacher: Any
    overlaps = staticmethod(Overlaps)

    def __init__(self, job: Job, config: AddendsConfig, steps_per_epoch: int, device: torch.device) -> None:
        super().__init__(job, config, steps_per_epoch, device)  # type: ignore[call-arg]  # the objective's
        self.addends = Addends(config, job, config.epochs * steps_per_epoch, device)
        self.student = self.networks["student"] = self._with_tokens(self.networks["student"]).train()
        if "teacher" in self.networks:
            self.teacher = self.networks["teacher"] = make_teacher(self.student)
            self.networks |= self.addends.snapshot_of(self.teacher)

    def _with_tokens(self, network: Any) -> nn.Module:
        backbone: Vit = network.backbone
        extended = self.network(backbone, network.head)
        self.addends.give_heads_(extended, backbone.embed_dim)
        return extended

    def build_network(self, role: str) -> nn.Module:
        """A network of a role's architecture."""
        return self.addends.fresh() if role == SNAPSHOT else self._with_tokens(super().build_network(role))  # type: ignore[safe-super]

    def step(self, step: Step) -> None:
        """One step of the objective, and then the snapshot."""
        super().step(step)  # type: ignore[safe-super]
        if step.finite:
            self.addends.after(step.number)


class ExtendedDINO(Extended, DINO):
    """DINO with losses that are added to its own (:mod:`dinoskip_objectives.addends`)."""

    network = TokensMultiCrop
    by_block = True

    def __init__(self, job: Job, config: DinoConfig, steps_per_epoch: int, device: torch.device) -> None:
        super().__init__(job, config, steps_per_epoch, device)
        self.alarm = CollapseAlarm(config.out_dim, loss="dino_loss")

    def loss(self, step: Step, views: list[Tensor], rates: DinoRates) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of a micro-batch, and what is logged of it."""
        config, batch = self.config, self.addends.micro_batch(views)
        with step.autocast():
            with torch.no_grad():
                teacher: Outputs = self.teacher(batch.views[0], places=batch.teacher)
            student: Outputs = step.forward(*batch.views, places=batch.student)
        aim = targets(teacher.compared, self.center, rates.teacher_temp, config.centering)
        dino = dino_loss(student.compared, aim.scores, aim.centre, config.student_temp, aim.temperature)
        more, parts = self.addends.loss(step.number, student, teacher, batch)
        centre = self.center if config.centering == "sinkhorn" else dino.batch_center
        values = {"dino_loss": dino.loss.detach(), "teacher_entropy": dino.entropy, "batch_center": centre, **parts}
        return dino.loss + more, values


class ExtendedIBOT(Extended, IBOT):
    """iBOT with losses that are added to its own (:mod:`dinoskip_objectives.addends`)."""

    network = TokensIbot

    def __init__(self, job: Job, config: IbotConfig, steps_per_epoch: int, device: torch.device) -> None:
        super().__init__(job, config, steps_per_epoch, device)
        self.teacher.head.mask_token = None

    def loss(self, step: Step, tensors: list[Tensor], rates: IbotRates) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of a micro-batch, and what is logged of it."""
        config, batch = self.config, self.addends.micro_batch(tensors)
        (views, *locals_), (masks, masked, weights) = batch.views, batch.others
        with step.autocast():
            with torch.no_grad():
                teacher: Outputs = self.teacher(views, masked, places=batch.teacher)
            student: Outputs = step.forward(views, masked, masks, *locals_, places=batch.student)
        scores, theirs = student.compared, teacher.compared
        aim = targets(theirs.cls, self.center, rates.teacher_temp, config.centering)
        cls = dino_loss(scores.cls, aim.scores, aim.centre, config.student_temp, aim.temperature)
        aim = targets(theirs.patches, self.patch_center, rates.teacher_patch_temp, config.centering)
        patches = patch_loss(scores.patches, aim.scores, aim.centre, weights, config.student_temp, aim.temperature)
        more, parts = self.addends.loss(step.number, student, teacher, batch, masks)
        sinkhorn = config.centering == "sinkhorn"
        return config.cls_weight * cls.loss + config.patch_weight * patches + more, {
            "cls_loss": cls.loss.detach(), "patch_loss": patches.detach(), "teacher_entropy": cls.entropy,
            "batch_center": self.center if sinkhorn else cls.batch_center,
            "batch_patch_center": self.patch_center if sinkhorn else theirs.mean, **parts,
        }  # fmt: skip


class ExtendedPatchContrast(Extended, PatchContrast):
    """Patch contrast with losses that are added to its own."""

    network = TokensPatch
    by_block = True

    def loss(self, step: Step, tensors: list[Tensor]) -> tuple[Tensor, Tensor | None, dict[str, Tensor]]:
        """Return a micro-batch's loss, the teacher's patches if there is one, and what is logged."""
        batch, network = self.addends.micro_batch(tensors), self.networks.get("teacher")
        with step.autocast():
            student: Outputs = step.forward(batch.views[0], places=batch.student)
            with torch.no_grad():
                teacher: Outputs | None = None if network is None else network(batch.views[0], places=batch.teacher)
        others = None if teacher is None else teacher.compared
        contrasted = contrast(
            student.compared, others, batch.others, self.config.temperature, self.buffers.get("queue")
        )
        more, parts = self.addends.loss(step.number, student, teacher, batch)
        values = {"contrast_loss": contrasted.loss.detach(), "accuracy": contrasted.accuracy, **parts}
        return contrasted.loss + more, others, values
