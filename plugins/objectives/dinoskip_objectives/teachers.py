"""Frozen teachers of a distillation: their settings, their features of a batch, and what makes those a target."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torch import Tensor
from torch.nn import functional as F

from dinoskip.data.shards import Source
from dinoskip.errors import ConfigError
from dinoskip.models.backbone import Backbone
from dinoskip.models.load import load_backbone
from dinoskip_objectives.distill_config import TeacherConfig
from dinoskip_objectives.standardise import Standardisation, by_channel, phi_s


class TeacherFeatures(NamedTuple):
    """``patches`` (B, h·w, D) of a grid (h, w) and ``cls`` (B, D), None without a loss of it; blocks side by side."""

    patches: Tensor
    cls: Tensor | None
    grid: tuple[int, int]


_AT_ONCE = 16  # images of a sample that a network sees in one pass


def block_numbers(blocks: Sequence[int], depth: int, name: str) -> list[int]:
    """Blocks from 1, where 0 is the last and -1 the one before it; :class:`ConfigError` for those beyond."""
    numbers = [block if block > 0 else depth + block for block in blocks]
    if min(numbers) < 1 or max(numbers) > depth:
        raise ConfigError(f"teachers: blocks {list(blocks)} must be within the {depth} of {name}")
    return numbers


class Teaching(ABC):
    """Source of the targets of a teacher: a network, or a store of its features (stored_teacher.py)."""

    config: TeacherConfig
    dim: int

    @abstractmethod
    def features(self, images: Tensor, stored: Iterator[Tensor]) -> TeacherFeatures:
        """Features of a batch (B, 3, S, S); ``stored``: the tensors that the loader read with it, which it may take."""

    @abstractmethod
    def sample(self, rows: Sequence[int], crops: Callable[[], Tensor]) -> list[TeacherFeatures]:
        """Features of the training images of these numbers, whole, or of ``crops()`` (B, 3, S, S), their centres."""

    def check(self, images: Source, rows: Sequence[int]) -> None:  # noqa: B027
        """Raise :class:`DataError` for training images that do not suit, as far as those of these numbers tell."""

    def measured(self, sample: Sequence[TeacherFeatures]) -> dict[str, Tensor]:
        """Return the statistics that standardise its targets, by name.

        They are means and factors of the features of a sample of images.
        """
        patches, cls = self.config.whitened
        by_kind: dict[str, Standardisation] = {}
        if patches:
            tokens = torch.cat([features.patches.flatten(0, 1) for features in sample])
            by_kind["patches"] = phi_s(tokens) if self.config.standardise == "phi_s" else by_channel(tokens)
        if cls:
            by_kind["cls"] = by_channel(torch.cat([features.cls for features in sample if features.cls is not None]))
        return {
            f"{kind}_{name}": value
            for kind, standardisation in by_kind.items()
            for name, value in standardisation._asdict().items()
        }

    def unmeasured(self, device: torch.device) -> dict[str, Tensor]:
        """Tensors of the names and shapes of :meth:`measured`, and the queue, before anything is known."""
        whitened = dict(zip(("patches", "cls"), self.config.whitened, strict=True))
        buffers: dict[str, Tensor] = {}
        for kind in (name for name, wanted in whitened.items() if wanted):
            square = kind == "patches" and self.config.standardise == "phi_s"
            buffers[f"{kind}_mean"] = torch.zeros(self.dim, device=device)
            buffers[f"{kind}_weight"] = torch.ones((self.dim, self.dim) if square else (self.dim,), device=device)
        if self.config.cls == "queue_kl":
            buffers["queue"] = torch.zeros(self.config.queue, self.dim, device=device)
        return buffers


class Teacher(Teaching):
    """A frozen backbone, seen through its settings; ``crop`` is the side of the student's view in pixels."""

    def __init__(self, config: TeacherConfig, crop: int, device: torch.device) -> None:
        self.config = config
        self.backbone: Backbone = load_backbone(config.backbone, device=device)
        patch, depth = self.backbone.patch_size, self.backbone.depth
        self.size = config.size or max(1, round(crop / patch)) * patch
        if self.size % patch:
            about = f"is not a multiple of the patch size {patch} of {config.backbone}"
            raise ConfigError(f"teachers: size {self.size} {about}")
        self.blocks = block_numbers(config.blocks, depth, config.backbone)
        if config.cls is not None and not self.backbone.has_class_token:
            raise ConfigError(f"teachers: {config.backbone} has no CLS token", "take cls: null")
        self.dim = self.backbone.dim * len(self.blocks)

    def features(self, images: Tensor, stored: Iterator[Tensor]) -> TeacherFeatures:
        """Features of a batch, normalised by ImageNet's statistics, in one pass."""
        layers = self.backbone.layers(self._input(images), self.blocks, "out", self.config.norm)
        patches = torch.cat([layers[block].tokens for block in self.blocks], dim=-1)
        cls = None
        if self.config.cls is not None:
            cls = torch.cat([token for block in self.blocks if (token := layers[block].cls) is not None], dim=-1)
        return TeacherFeatures(patches, cls, layers[self.blocks[0]].grid)

    def sample(self, rows: Sequence[int], crops: Callable[[], Tensor]) -> list[TeacherFeatures]:
        """Features of centre crops, a few at a time."""
        return [self.features(part, iter(())) for part in torch.split(crops(), _AT_ONCE)]

    def _input(self, images: Tensor) -> Tensor:
        """The batch at this teacher's size and with its statistics."""
        if images.shape[-1] != self.size:
            images = F.interpolate(images, (self.size, self.size), mode="bicubic", antialias=True)
        known = (IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD)
        if (self.backbone.mean, self.backbone.std) == known:
            return images
        mean, std, other_mean, other_std = (
            images.new_tensor(values).view(3, 1, 1) for values in (*known, self.backbone.mean, self.backbone.std)
        )
        return (images * std + mean - other_mean) / other_std
