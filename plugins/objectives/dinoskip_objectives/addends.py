"""Losses that are added to those of DINO, iBOT and patch contrast: KoLeo, Gram anchoring, patch kernel alignment.

Each has a file of its own; here is what they read of a step, and how their weighted sum is made. B images, V global
views; P pairs of views and T places in each for the alignment.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn import functional as F

from dinoskip.models.backbone import Backbone
from dinoskip.models.build import from_config
from dinoskip.models.load import load_backbone
from dinoskip.runtime.distributed import local
from dinoskip.runtime.precision import at_least_float32
from dinoskip.training.addends_config import OF_THE_RUN, AddendsConfig
from dinoskip.training.dino import make_teacher
from dinoskip.training.recipe import Job
from dinoskip_objectives.feature_losses import gram_loss, koleo_of_crops, resized
from dinoskip_objectives.paka import PakaHead, Regions, aligned, paka

CROPS = 2  # global ones of an image
SNAPSHOT = "gram"  # the role of an earlier state of the teacher


class Outputs(NamedTuple):
    """Outputs of a network for a micro-batch.

    ``compared`` is for its objective, the others are for the addends, after the last norm.
    """

    compared: Any
    cls: Tensor  # (V·B, C) of the global crops
    patches: Tensor  # (V·B, N, C) of the global crops
    aligned: Tensor | None  # (P, T, D)


class Places(NamedTuple):
    """Sampling positions in a network's last group of views.

    They are ``regions`` (P, 5), whether each is flipped back, ``turned`` (P,), and positions along a side, ``side``.
    """

    regions: Tensor
    turned: Tensor
    side: int


def outputs_of(network: nn.Module, compared: Any, tokens: Sequence[Tensor], places: Places | None) -> Outputs:
    """Return the outputs of a network from all its tokens (n, 1 + N, C).

    ``tokens`` are those of the global crops, and of the local ones if there are any.
    """
    prefix = network.get_submodule("backbone").num_prefix_tokens
    aligned_tokens = None
    if places is not None:
        head: Any = network.get_submodule("head").get_submodule("paka")
        aligned_tokens = head(aligned(tokens[-1][:, prefix:], *places))
    return Outputs(compared, tokens[0][:, 0], tokens[0][:, prefix:], aligned_tokens)


class MicroBatch(NamedTuple):
    """A micro-batch: the views, what else the objective was given, the places of both, and global crops as rendered."""

    views: list[Tensor]
    others: list[Tensor]
    student: Places | None
    teacher: Places | None
    valid: Tensor | None
    rendered: Tensor


class Snapshot(nn.Module):
    """An earlier state of a backbone, with no head."""

    def __init__(self, backbone: VisionTransformer) -> None:
        super().__init__()
        self.backbone, self.head = backbone, nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        """Return all tokens (n, 1 + N, C) after the last norm."""
        tokens: Tensor = self.backbone.forward_features(images)
        return tokens


class Addends:
    """The addends of a run of ``total`` steps, and the networks that they need beside the objective's."""

    def __init__(self, config: AddendsConfig, job: Job, total: int, device: torch.device) -> None:
        self.config, self.job, self.total, self.device = config, job, total, device
        self.anchor: Backbone | None = None
        if config.gram is not None and config.gram.teacher not in OF_THE_RUN:
            self.anchor = load_backbone(config.gram.teacher, device=device)

    def give_heads_(self, network: nn.Module, width: int) -> None:
        """Give a network's head those of the addends, in place."""
        if self.config.paka is not None:
            head = PakaHead(width, self.config.paka, seed=self.job.seed)
            network.get_submodule("head").add_module("paka", head.to(next(network.parameters()).device))

    def snapshot_of(self, teacher: nn.Module) -> dict[str, nn.Module]:
        """The network of an earlier state by its role, if one is needed; at first the teacher as it is."""
        if self.config.gram is None or self.config.gram.teacher != "snapshot":
            return {}
        backbone: Any = teacher.get_submodule("backbone")
        self.teacher, self.snapshot = teacher, make_teacher(Snapshot(backbone))
        return {SNAPSHOT: self.snapshot}

    def fresh(self) -> nn.Module:
        """A network of an earlier state's architecture."""
        return Snapshot(from_config(self.job.model, weight_init="skip"))

    def micro_batch(self, tensors: Sequence[Tensor]) -> MicroBatch:
        """The loader's tensors of a micro-batch, told apart."""
        views = [tensor for tensor in tensors if tensor.ndim == 4]
        others, places = list(tensors[len(views) :]), []
        if self.config.paka is not None:
            others, places = others[:-4], others[-4:]
        rendered, gram = views[0], self.config.gram
        if gram is not None and gram.scale > 1:
            # The anchor sees the crops larger, as in DINOv3. Ours: the student's are made smaller after the
            # augmentation, so that the loader's work is the same with and without this loss.
            views[0] = F.interpolate(rendered, rendered.shape[-1] // gram.scale, mode="bicubic", antialias=True)
        if not places:
            return MicroBatch(views, others, None, None, None, rendered)
        regions = Regions(*places)
        side = views[-1].shape[-1] // self.job.model.patch_size
        student = Places(regions.student, regions.turned[:, 0], side)
        teacher = Places(regions.teacher, regions.turned[:, 1], side)
        return MicroBatch(views, others, student, teacher, regions.valid, rendered)

    def loss(
        self, step: int, student: Outputs, teacher: Outputs | None, batch: MicroBatch, masks: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Weighted sum at ``step``, and every part before its weight; ``masks`` bool (V·B, N) are the student's."""
        config, parts = self.config, dict[str, Tensor]()
        total = at_least_float32(student.cls.new_zeros(()))
        if config.koleo is not None and (weight := config.koleo.at(step, self.total)):
            parts["koleo"] = part = koleo_of_crops(student.cls, CROPS, config.koleo.neighbours)
            total = total + weight * part
        if config.gram is not None and (weight := config.gram.at(step, self.total)):
            parts["gram"] = part = self._gram(student, teacher, batch, masks)
            total = total + weight * part
        if config.paka is not None:  # its head must be used in every step
            assert teacher is not None
            assert student.aligned is not None
            assert teacher.aligned is not None
            assert batch.valid is not None
            parts["paka"] = part = paka(student.aligned, teacher.aligned, batch.valid)
            total = total + config.paka.at(step, self.total) * part
        return total, {name: value.detach() for name, value in parts.items()}

    def _gram(self, student: Outputs, teacher: Outputs | None, batch: MicroBatch, masks: Tensor | None) -> Tensor:
        config = self.config.gram
        assert config is not None
        with torch.no_grad():
            theirs = self._anchor(teacher, batch.rendered)
        sides = [round(patches.shape[1] ** 0.5) for patches in (theirs, student.patches)]
        theirs = resized(theirs, (sides[0],) * 2, (sides[1],) * 2, "bicubic", antialias=config.antialias)
        mask = None if config.tokens == "all" or masks is None else masks if config.tokens == "masked" else ~masks
        return gram_loss(
            student.patches, theirs, mask, level=config.level, negatives=config.negatives, normalised=config.normalised
        )

    def _anchor(self, teacher: Outputs | None, rendered: Tensor) -> Tensor:
        """Patches (V·B, N', C') of the network that the student is held to, of the global crops as rendered."""
        if self.anchor is not None:
            tokens = self.anchor.layers(rendered, [self.anchor.depth], norm="final")[self.anchor.depth].tokens
            return tokens
        assert self.config.gram is not None
        if self.config.gram.teacher == "ema":
            assert teacher is not None
            return teacher.patches
        prefix = self.snapshot.get_submodule("backbone").num_prefix_tokens
        patches: Tensor = self.snapshot(rendered)[:, prefix:]
        return patches

    @torch.no_grad()
    def after(self, step: int) -> None:
        """Take the snapshot after a step's update, if it is time."""
        gram = self.config.gram
        if gram is not None and gram.snapshot_after(step, self.total):
            torch._foreach_copy_([kept for kept, _ in self._pairs], [now for _, now in self._pairs])

    @cached_property
    def _pairs(self) -> list[tuple[Tensor, Tensor]]:
        """The snapshot's and the teacher's parameters; paired when first needed, since sharding replaces them."""
        both = [network.get_submodule("backbone").parameters() for network in (self.snapshot, self.teacher)]
        return [(local(kept), local(now)) for kept, now in zip(*both, strict=True)]
