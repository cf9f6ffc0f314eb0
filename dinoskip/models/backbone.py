"""One interface over every backbone: the patch tokens of any block, at any of its read points.

Queries, keys and values come from the attention module's own projection weights; the branches inside a block are seen
by hooks that are gone when the block has run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, overload

import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torch import Tensor, nn
from torch.nn import functional as F

from dinoskip.errors import ConfigError, ReadError, first_line
from dinoskip.models.adapter import BRANCHES, PARTS, VitAdapter
from dinoskip.models.entmax import EntmaxAttention
from dinoskip.models.export import hash_weights
from dinoskip.models.from_hf import HfVitAdapter
from dinoskip.models.from_hub import DinoAuthorsAdapter
from dinoskip.models.from_timm import TimmEvaAdapter, TimmVitAdapter
from dinoskip.models.image_transform import ImageTransform
from dinoskip.models.levels import HookedLevels, LevelReader, TimmLevels
from dinoskip.models.temperature import Temperature
from dinoskip.runtime.arithmetic import Precision
from dinoskip.runtime.console import log
from dinoskip.runtime.precision import frozen_passes
from dinoskip.settings.read_points import FACETS

Norm = Literal["none", "final", "layer"]
OWN_POSITIONS = "own"
"""Value of :attr:`Backbone.positions` for networks that resize positions, if they have any, by their own code."""


@dataclass(frozen=True)
class LayerFeatures:
    """Features of one block: ``tokens`` (B, h·w, C) in raster order, ``cls`` (B, C) or None, ``grid`` (h, w)."""

    tokens: Tensor
    cls: Tensor | None
    grid: tuple[int, int]


_ADAPTERS: tuple[type[VitAdapter], ...] = (TimmVitAdapter, TimmEvaAdapter, HfVitAdapter, DinoAuthorsAdapter)


def takes_apart(model: nn.Module) -> bool:
    """Whether the network is a plain ViT that is read block by block, at every read point."""
    return any(kind.fits(model) for kind in _ADAPTERS)


def adapter_for(model: nn.Module, spec: str, pos_embed: str | None = None) -> VitAdapter:
    """The network taken apart; :class:`ConfigError` for one that is no plain ViT, or cannot have ``pos_embed``."""
    if pos_embed not in (None, "timm", "dino", "bicubic"):
        raise ConfigError(f"{spec}: pos_embed {pos_embed!r} is none of timm, dino, bicubic")
    if TimmVitAdapter.fits(model):
        return TimmVitAdapter(model, spec, pos_embed)
    for kind in _ADAPTERS[1:]:
        if kind.fits(model):
            if pos_embed not in (None, "timm"):
                raise ConfigError(f"{spec}: a {type(model).__name__} interpolates by its own code", "no pos_embed here")
            return kind(model, spec)
    hint = "use a plain ViT of timm, transformers (ViT, DeiT, MAE, DINOv2, DINOv3, CLIP, SigLIP) or the DINO authors"
    raise ConfigError(f"{spec}: a {type(model).__name__} is not supported", hint)


class Backbone:
    """A frozen ViT in eval mode.

    ``model`` is the network itself, of timm, transformers or the DINO authors. ``mean`` and ``std`` are the image
    statistics that its weights were trained with (ImageNet's where nothing says); ``info`` is what a weights file of
    ours says of its training, {} elsewhere; ``weights_hash`` is the sha256 of the weights as loaded, before any change
    of dtype. ``pos_embed`` ("timm", "dino" or "bicubic") says how timm's VisionTransformer gets positions for other
    image sizes than its own, see docs/backbones.md; None as the model says itself; other networks do it by their own
    code. ``positions`` is the same, but "own" of those. ``precision`` is that of its passes, set by whoever opens it;
    features have the weights' dtype in each.
    """

    precision: Precision = "fp32"

    def __init__(
        self,
        model: nn.Module,
        spec: str,
        info: Mapping[str, Any] | None = None,
        *,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        pos_embed: str | None = None,
    ) -> None:
        self.adapter = adapter = adapter_for(model, spec, pos_embed)
        self.model: Any = model.eval()
        self.spec = spec
        self.pos_embed = str(getattr(adapter, "pos_embed", "timm"))
        self.positions = str(getattr(adapter, "pos_embed", OWN_POSITIONS))
        self.info = dict(info or {})
        self.patch_size = adapter.patch_size
        self.depth = len(adapter.blocks)
        self.numbers: tuple[int, ...] = tuple(range(1, self.depth + 1))
        self.size_multiple = adapter.patch_size
        self.dim = adapter.dim
        self.num_heads = adapter.num_heads
        self.num_prefix_tokens = adapter.num_prefix_tokens
        self.has_class_token = adapter.has_class_token
        known = adapter.image_statistics() or (IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD)
        self.mean: tuple[float, ...] = tuple(mean or known[0])
        self.std: tuple[float, ...] = tuple(std or known[1])

    @classmethod
    def from_model(
        cls,
        model: nn.Module,
        spec: str = "model",
        *,
        layers: Sequence[str] | None = None,
        image_size: int | None = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> Backbone:
        """Wrap any network and put it into eval mode.

        A plain ViT is read block by block. Any other, or one with ``layers`` (names of submodules whose outputs are
        maps of the image), is read level by level (:mod:`dinoskip.models.levels`); ``image_size`` is then the side of
        the picture of zeros from which grids are read, 224 unless the network says. Raises :class:`ConfigError` for
        names that are not in the network, outputs that are no maps, and networks that take no such picture.
        """
        if layers is None and takes_apart(model):
            return cls(model, spec, mean=mean, std=std)
        return level_backbone(model, spec, layers, image_size, mean=mean, std=std)

    @property
    def parts(self) -> tuple[Backbone, ...]:
        """Backbones of the blocks that share grid and width; itself where all do, as in a plain ViT."""
        return (self,)

    def read_at(self, facets: Sequence[str]) -> tuple[str, ...]:
        """The read points at which this network is read where a task asks for ``facets``."""
        return tuple(facets)

    @property
    def beside_weights(self) -> list[str]:
        """Settings not in the weights that features depend on: positions, skips, attention, graying, temperature,
        precision.
        """
        facts = [] if self.pos_embed == "timm" else [self.pos_embed]
        facts += _skips([getattr(block, "skip_weights", (1.0, 1.0)) for block in self.adapter.blocks])
        if any(isinstance(self.adapter.attention(index), EntmaxAttention) for index in range(self.depth)):
            facts.append("attention entmax15")
        facts += _graying(self.model)
        norms = [getattr(getattr(block, "attn", None), "q_norm", None) for block in self.adapter.blocks]
        factors = [norm.factor for norm in norms if isinstance(norm, Temperature)]
        facts += [f"temperature {factors}"] if factors else []
        return [*facts, *self._precise]

    @property
    def _precise(self) -> list[str]:
        """Description of the precision; [] if it is float32."""
        return [] if self.precision == "fp32" else [f"precision {self.precision}"]

    @cached_property
    def weights_hash(self) -> str:
        """Sha256 of the weights, computed when it is first asked for, or before their dtype changes."""
        return hash_weights(self.model.state_dict())

    @property
    def _weight(self) -> Tensor:
        weight: Tensor = next(self.model.parameters())
        return weight

    @property
    def device(self) -> torch.device:
        """Device that the weights are on."""
        return self._weight.device

    @property
    def dtype(self) -> torch.dtype:
        """The weights' dtype, in which features are computed and returned."""
        return self._weight.dtype

    def to(self, device: str | torch.device, dtype: torch.dtype | None = None) -> Backbone:
        """Move the weights, and change their dtype where one is given; returns itself."""
        if dtype is not None and dtype != self.dtype:
            _ = self.weights_hash
        self.model.to(device=device, dtype=dtype)
        return self

    def transform(self, size: int = 224, mode: Literal["square", "center_crop"] = "square") -> ImageTransform:
        """Return our evaluation's transform of an image into this network's input, for a DataLoader or by hand.

        ``square``: resized to size × size, aspect ignored (probes); ``center_crop``: the centre of the image resized
        to a short side of size / 0.875 (k-NN). Raises :class:`ConfigError` unless ``size`` is whole patches.
        """
        if size <= 0 or size % self.size_multiple:
            near = max(1, round(size / self.size_multiple)) * self.size_multiple
            raise ConfigError(f"size {size} is not a multiple of the patch size {self.size_multiple}", f"try {near}")
        return ImageTransform(size, self.mean, self.std, mode)

    @overload
    def layers(
        self, images: Tensor, blocks: Iterable[int], facet: str = ..., norm: str = ...
    ) -> dict[int, LayerFeatures]: ...
    @overload
    def layers(
        self,
        images: Tensor,
        blocks: Iterable[int],
        facet: list[str] | tuple[str, ...],
        norm: str | list[str] | tuple[str, ...] = ...,
    ) -> dict[str, dict[int, LayerFeatures]]: ...
    @torch.no_grad()
    def layers(
        self,
        images: Tensor,
        blocks: Iterable[int],
        facet: str | list[str] | tuple[str, ...] = "out",
        norm: str | list[str] | tuple[str, ...] = "none",
    ) -> dict[int, LayerFeatures] | dict[str, dict[int, LayerFeatures]]:
        """Features of ``blocks`` (numbered 1..depth) in one pass, by block; by facet and block for several facets.

        images: float (B, 3, H, W), normalised, H and W multiples of the patch size; moved to the weights' device and
        dtype. ``facet`` is where a block is read (docs/concepts/read_points.md). ``out``: the block's output, (C).
        ``query``, ``key``, ``value``: the attention's projections of its input (norm1(x) in pre-norm blocks), all heads
        concatenated, after the module's q/k norm where it has one and before rotary position embedding. ``attn`` and
        ``mlp`` (C): what the attention and the MLP return, before LayerScale, skip weight and addition;
        ``attn_scaled``, ``mlp_scaled`` (C): after LayerScale, the same without one. ``hidden`` (4 C at the usual MLP
        ratio): the input of the MLP's last linear layer, after its activation.
        ``norm``: none, the model's ``final`` norm (not of ``hidden``, whose width it does not have), or ``layer`` =
        LayerNorm without parameters (eps 1e-6), for CLS and patches alike; one for all facets, or one for each.
        ``cls`` is the CLS token of the same block and facet, None for models without one; registers and distillation
        tokens are left out.
        Raises :class:`ReadError` for a wrong size, block or option, :class:`ConfigError` for a facet that blocks do not
        have.
        """
        wanted, facets = sorted(set(blocks)), [facet] if isinstance(facet, str) else list(facet)
        norms = dict(zip(facets, [norm] * len(facets) if isinstance(norm, str) else norm, strict=True))
        grid = self._checked(images, wanted, norms)
        projected, inside = [f for f in facets if f in PARTS], [f for f in facets if f in BRANCHES]
        features_of: dict[str, dict[int, LayerFeatures]] = {name: {} for name in facets}
        with frozen_passes(self.precision, self.device):
            tokens, context = self.adapter.embed(images.to(self.device, self.dtype))
            for index in range(wanted[-1]):
                asked, last = index + 1 in wanted, index + 1 == wanted[-1]
                read = {name: self.adapter.project(index, tokens, name) for name in projected if asked}
                if asked and inside:
                    tokens, seen = self.adapter.run_block_seen(index, tokens, context, inside)
                    read |= seen
                elif not last or "out" in facets:
                    tokens = self.adapter.run_block(index, tokens, context)
                read["out"] = tokens
                for name in facets if asked else ():
                    of_block = self.normed(self._as_weights(read[name]), norms[name])
                    features_of[name][index + 1] = self._split(of_block, grid)
        return features_of[facet] if isinstance(facet, str) else features_of

    def _as_weights(self, features: Tensor) -> Tensor:
        """Features in the weights' dtype where this network's own autocast left them in bfloat16; else as they are."""
        return features.to(self.dtype) if self.precision == "bf16" else features

    def _checked(self, images: Tensor, wanted: list[int], norms: Mapping[str, str]) -> tuple[int, int]:
        for facet, norm in norms.items():
            if facet not in FACETS:
                raise ReadError(f"facet {facet!r} is none of {', '.join(FACETS)}")
            if norm not in ("none", "final", "layer"):
                raise ReadError(f"norm {norm!r} is none of none, final, layer")
            if (facet, norm) == ("hidden", "final"):
                raise ReadError(f"facet hidden is wider than the final norm of {self.spec}: use norm none or layer")
        if not norms:
            raise ReadError("no facet is asked for")
        if not wanted or not set(wanted) <= set(self.numbers):
            numbers = f"{self.numbers[0]}..{self.numbers[-1]}"
            raise ReadError(f"blocks {wanted} must be one or more of {numbers} of {self.spec}")
        if images.ndim != 4 or not images.is_floating_point():
            raise ReadError(f"images must be float (B, 3, H, W), got {images.dtype} {tuple(images.shape)}")
        height, width = images.shape[-2:]
        multiple = self.size_multiple
        if height % multiple or width % multiple or not height or not width:
            raise ReadError(f"image size {height}×{width} is not a multiple of the patch size {multiple}")
        self._check_size(height, width)
        return height // self.patch_size, width // self.patch_size

    def _check_size(self, height: int, width: int) -> None:
        """ReadError for a size in whole patches that the network cannot take."""
        self.adapter.check_size(height, width)

    def stride(self, block: int) -> int:
        """Pixels a cell of a block's grid: the patch size, or a level's own."""
        return self.patch_size

    def width(self, facet: str, block: int = 0) -> int:
        """Channels of a facet: ``dim``, but for ``hidden``; ConfigError where blocks have no MLP to read it from.

        ``block`` counts where each has a width of its own.
        """
        return self.adapter.hidden_width() if facet == "hidden" else self.dim

    @torch.no_grad()
    def normed(self, features: Tensor, norm: str) -> Tensor:
        """Block outputs (B, N, C) under a norm, as :meth:`layers` gives them; ReadError if there is no final norm."""
        if norm == "layer":
            return F.layer_norm(features, features.shape[-1:], eps=1e-6)  # that of the final norm of timm's ViTs
        if norm == "final":
            normalised = self.adapter.final_norm(features)
            if normalised is None:
                raise ReadError(f"{self.spec} has no final norm: use norm none or layer")
            return normalised
        return features

    def _split(self, features: Tensor, grid: tuple[int, int]) -> LayerFeatures:
        cls = features[:, 0] if self.has_class_token else None
        return LayerFeatures(features[:, self.num_prefix_tokens :], cls, grid)


def _skips(weights: Sequence[tuple[float, float]]) -> list[str]:
    """Describe the weights of the skips; return [] if all are 1."""
    if any(weight not in (0, 1) for pair in weights for weight in pair):
        return [f"skip weights {list(weights)}"]
    skips = [tuple(map(bool, pair)) for pair in weights]
    return [] if all(map(all, skips)) else [f"skips {skips}"]


def _graying(model: nn.Module) -> list[str]:
    """Describe Token Graying; return [] if there is none."""
    graying = getattr(model, "graying", None) or getattr(getattr(model, "patch_embed", None), "graying", None)
    return [] if graying is None else [f"graying {graying.kind} {graying.epsilon}"]


class LevelBackbone(Backbone):
    """A frozen network in eval mode whose blocks are its levels, each with its own grid and width.

    Tasks compare blocks cell by cell, so they take one of :attr:`parts` at a time: levels of one stride and one width,
    under the numbers that they have in the whole. ``patch_size`` is the stride of the part, of the whole the largest;
    sides of images are multiples of ``size_multiple``. ``cls`` is the class token where all levels have one, else the
    mean of a level's cells, the usual descriptor of a CNN. There is facet ``out`` alone and no final norm: under norm
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
        self.spec, self.info, self.pos_embed, self.positions = spec, dict(info or {}), "timm", OWN_POSITIONS
        self.depth = len(reader.levels)
        self.numbers = tuple(range(1, self.depth + 1))
        self.size_multiple = reader.multiple
        self.patch_size = max(level.stride for level in reader.levels)
        self.dim = reader.levels[-1].width
        self.num_heads, self.num_prefix_tokens = 0, int(reader.has_class_token)
        self.has_class_token = True
        known = reader.image_statistics() or (IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD)
        self.mean, self.std = tuple(mean or known[0]), tuple(std or known[1])

    def read_at(self, facets: Sequence[str]) -> tuple[str, ...]:
        """``out`` for whatever one facet a task asks for by default, which is said; several are refused by the pass."""
        if len(facets) > 1 or tuple(facets) == ("out",):
            return tuple(facets)
        log.info("%s is read level by level: facet out in place of %s", self.spec, facets[0])
        return ("out",)

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
        """Settings not in the weights that features depend on: the levels that are read, skips, graying, precision."""
        weights = [module.skip_weights for module in self.model.modules() if hasattr(module, "skip_weights")]
        levels = f"levels {[level.name for level in self.reader.levels]}"
        return [levels, *_skips(weights), *_graying(self.model), *self._precise]

    @torch.no_grad()
    def layers(  # type: ignore[override]
        self,
        images: Tensor,
        blocks: Iterable[int],
        facet: str | list[str] | tuple[str, ...] = "out",
        norm: str | list[str] | tuple[str, ...] = "none",
    ) -> dict[int, LayerFeatures] | dict[str, dict[int, LayerFeatures]]:
        """Return what :meth:`Backbone.layers` does, for facet ``out``; each level has a grid of its own."""
        wanted, facets = sorted(set(blocks)), [facet] if isinstance(facet, str) else list(facet)
        norms = dict(zip(facets, [norm] * len(facets) if isinstance(norm, str) else norm, strict=True))
        self._checked(images, wanted, norms)
        for name in facets:
            self.width(name)
        try:
            with frozen_passes(self.precision, self.device):
                maps = self.reader.read(images.to(self.device, self.dtype), [number - 1 for number in wanted])
        except (RuntimeError, AssertionError) as error:
            height, width = images.shape[-2:]
            reason = first_line(error)
            raise ReadError(f"image size {height}×{width}: {self.spec} does not take it: {reason}") from error
        features: dict[int, LayerFeatures] = {}
        for number in wanted:
            read = maps[number - 1]
            cls = read.tokens.mean(1) if read.cls is None else read.cls
            tokens, cls = (self.normed(self._as_weights(part), norms["out"]) for part in (read.tokens, cls))
            features[number] = LayerFeatures(tokens, cls, read.grid)
        return features if isinstance(facet, str) else {"out": features}

    def _check_size(self, height: int, width: int) -> None:
        """Networks that take no other size than their own say so when they are run."""

    def stride(self, block: int) -> int:
        """Pixels a cell of a level's grid."""
        return self.reader.levels[block - 1].stride

    def width(self, facet: str, block: int = 0) -> int:
        """Channels of ``out``, of the part or of a level; :class:`ConfigError` for any other facet."""
        if facet != "out":
            raise ConfigError(
                f"{self.spec}: facet {facet} is of plain ViTs; this network is read level by level", "use facet out"
            )
        return self.reader.levels[block - 1].width if block else self.dim

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
