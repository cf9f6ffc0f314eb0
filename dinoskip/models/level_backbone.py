"""A backbone that is read level by level (:mod:`dinoskip.models.levels`) behind the interface of :class:`Backbone`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from typing import Any

import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torch import Tensor, nn

from dinoskip.errors import ConfigError
from dinoskip.models.backbone import Backbone, LayerFeatures
from dinoskip.models.levels import HookedLevels, LevelReader, TimmLevels


class LevelBackbone(Backbone):
    """A frozen network in eval mode whose blocks are its levels, each with its own grid and width.

    Tasks compare blocks cell by cell, so they take one of :attr:`parts` at a time: levels of one stride and one width,
    under the numbers that they have in the whole. ``patch_size`` is the stride of the part, of the whole the largest;
    sides of images are multiples of ``size_multiple``. There is facet ``out`` alone and no final norm: under norm
    ``final`` levels are as under ``none``, since no norm of the network follows them all.
    """

    def __init__(
        self,
        reader: LevelReader,
        spec: str,
        info: Mapping[str, Any] | None = None,
        *,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> None:
        self.reader = reader
        self.model = reader.model.eval()
        self.spec, self.info, self.pos_embed = spec, dict(info or {}), "timm"
        self.depth = len(reader.levels)
        self.numbers = tuple(range(1, self.depth + 1))
        self.size_multiple = reader.multiple
        self.patch_size = max(level.stride for level in reader.levels)
        self.dim = reader.levels[-1].width
        self.num_heads, self.has_class_token = 0, reader.has_class_token
        self.num_prefix_tokens = int(self.has_class_token)
        known = reader.image_statistics() or (IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD)
        self.mean, self.std = tuple(mean or known[0]), tuple(std or known[1])

    @property
    def parts(self) -> tuple[Backbone, ...]:
        """Backbones of the levels of one stride and width each, in order; itself where all are alike."""
        levels = self.reader.levels
        alike: dict[tuple[int, int], list[int]] = {}
        for number in self.numbers:
            alike.setdefault((levels[number - 1].stride, levels[number - 1].width), []).append(number)
        if len(alike) == 1:
            return (self,)
        parts = []
        for (stride, width), numbers in alike.items():
            part = copy(self)
            part.numbers, part.patch_size, part.dim = tuple(numbers), stride, width
            parts.append(part)
        return tuple(parts)

    @property
    def beside_weights(self) -> list[str]:
        """What features depend on and the weights do not say: where they are read, and at which size it is built."""
        return [f"levels {[level.name for level in self.reader.levels]}"]

    @torch.no_grad()
    def layers(  # type: ignore[override]
        self,
        images: Tensor,
        blocks: Iterable[int],
        facet: str | list[str] | tuple[str, ...] = "out",
        norm: str | list[str] | tuple[str, ...] = "none",
    ) -> dict[int, LayerFeatures] | dict[str, dict[int, LayerFeatures]]:
        """As :meth:`Backbone.layers`, of facet ``out``; levels of the whole network each have a grid of their own."""
        wanted, facets = sorted(set(blocks)), [facet] if isinstance(facet, str) else list(facet)
        norms = dict(zip(facets, [norm] * len(facets) if isinstance(norm, str) else norm, strict=True))
        self._checked(images, wanted, norms)
        for name in facets:
            self.width(name)
        try:
            maps = self.reader.read(images.to(self.device, self.dtype), [number - 1 for number in wanted])
        except (RuntimeError, AssertionError) as error:
            height, width = images.shape[-2:]
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise ValueError(f"image size {height}×{width}: {self.spec} does not take it: {reason}") from error
        features = {
            number: LayerFeatures(
                self.normed(maps[number - 1].tokens, norms["out"]), self._cls(maps[number - 1].cls, norms["out"]),
                maps[number - 1].grid,
            )
            for number in wanted
        }  # fmt: skip
        return features if isinstance(facet, str) else {"out": features}

    def _cls(self, cls: Tensor | None, norm: str) -> Tensor | None:
        return None if cls is None else self.normed(cls, norm)

    def _check_size(self, height: int, width: int) -> None:
        """Networks that take no other size than their own say so when they are run."""

    def width(self, facet: str) -> int:
        """Channels of ``out``; :class:`ConfigError` for any other facet."""
        if facet != "out":
            raise ConfigError(
                f"{self.spec}: facet {facet} is of plain ViTs; this network is read level by level", "use facet out"
            )
        return self.dim

    def normed(self, features: Tensor, norm: str) -> Tensor:
        """Features under a norm, as :meth:`layers` gives them."""
        return super().normed(features, norm) if norm == "layer" else features


def level_backbone(
    model: nn.Module, spec: str, layers: Sequence[str] | None = None, size: int | None = None, **known: Any
) -> LevelBackbone:
    """Wrap a network that is no plain ViT: timm's by its own levels, any other, or one with ``layers``, by hooks.

    ``size`` is the side of the pictures from which strides are read; None: what the network was built for, else 224.
    ``known`` are ``info``, ``mean`` and ``std`` of :class:`LevelBackbone`. Raises :class:`ConfigError` for a network
    without levels.
    """
    built_for = (getattr(model, "pretrained_cfg", None) or {}).get("input_size")
    side = size or (int(built_for[-1]) if built_for else 224)
    timm_levels = layers is None and TimmLevels.fits(model)
    reader = TimmLevels(model, spec, side) if timm_levels else HookedLevels(model, spec, layers, side)
    return LevelBackbone(reader, spec, **known)
