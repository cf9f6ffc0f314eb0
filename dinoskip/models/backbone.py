"""One interface over every backbone: the patch tokens of any block, as output, query, key or value.

Facets come from the attention module's own projection weights, so nothing is hooked and nothing is left behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.layers import Attention, PatchEmbed
from timm.models.vision_transformer import Block as TimmBlock
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn import functional as F

from dinoskip.errors import ConfigError
from dinoskip.models.export import hash_weights
from dinoskip.models.vit import attention_width, embed

Facet = Literal["out", "key", "query", "value"]
Norm = Literal["none", "final", "layer"]
_PART = {"query": 0, "key": 1, "value": 2}


@dataclass(frozen=True)
class LayerFeatures:
    """Features of one block: ``tokens`` (B, h·w, C) in raster order, ``cls`` (B, C) or None, ``grid`` (h, w)."""

    tokens: Tensor
    cls: Tensor | None
    grid: tuple[int, int]


class Backbone:
    """A frozen ViT in eval mode.

    ``mean`` and ``std`` are the image statistics that its weights were trained with; ``info`` is what a weights file
    of ours says of its training, {} elsewhere; ``weights_hash`` is the sha256 of the weights as loaded, before any
    change of dtype.
    """

    def __init__(self, model: VisionTransformer, spec: str, info: Mapping[str, Any] | None = None) -> None:
        if not isinstance(model, VisionTransformer):
            raise ConfigError(
                f"{spec}: a {type(model).__name__} is not supported", "use a plain timm VisionTransformer"
            )
        if not isinstance(model.patch_embed, PatchEmbed):
            raise ConfigError(f"{spec}: only ViTs with one convolution as patch embedding are supported")
        height, width = model.patch_embed.patch_size
        if height != width:
            raise ConfigError(f"{spec}: patches of {height}×{width} pixels are not square")
        self.model = model.eval()
        self.spec = spec
        self.info = dict(info or {})
        self.patch_size = int(height)
        self.depth = len(model.blocks)
        self.dim = int(model.embed_dim)
        self.num_heads = next((m.num_heads for m in model.blocks.modules() if isinstance(m, Attention)), 0)
        self.num_prefix_tokens = int(model.num_prefix_tokens)
        pretrained = getattr(model, "pretrained_cfg", None) or {}
        self.mean: tuple[float, ...] = tuple(pretrained.get("mean", IMAGENET_DEFAULT_MEAN))
        self.std: tuple[float, ...] = tuple(pretrained.get("std", IMAGENET_DEFAULT_STD))
        self.weights_hash = hash_weights(model.state_dict())

    @classmethod
    def from_model(cls, model: VisionTransformer, spec: str = "model") -> Backbone:
        """Wrap a timm ViT and put it into eval mode; :class:`ConfigError` for models that are not plain ViTs."""
        return cls(model, spec)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.model.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """The weights' dtype, in which features are computed and returned."""
        return next(self.model.parameters()).dtype

    def to(self, device: str | torch.device, dtype: torch.dtype | None = None) -> Backbone:
        """Move the weights, and change their dtype where one is given; returns itself."""
        self.model.to(device=device, dtype=dtype)
        return self

    @torch.no_grad()
    def layers(
        self, images: Tensor, blocks: Iterable[int], facet: Facet = "out", norm: Norm = "none"
    ) -> dict[int, LayerFeatures]:
        """Features of ``blocks`` (numbered 1..depth) in one pass.

        images: float (B, 3, H, W), normalised, H and W multiples of the patch size; moved to the weights' device and
        dtype. ``out`` is the block's output; ``query``, ``key`` and ``value`` are the attention's projections of
        norm1(x), q/k norm included where the module has one, all heads concatenated. ``norm``: none, the model's
        ``final`` LayerNorm, or ``layer`` = LayerNorm without parameters (eps 1e-6), for CLS and patches alike.
        ``cls`` is the CLS token of the same block and facet, None for models without one.
        Raises ValueError for a wrong size, block or option.
        """
        wanted = sorted(set(blocks))
        grid = self._checked(images, wanted, facet, norm)
        tokens = embed(self.model, images.to(self.device, self.dtype))
        found: dict[int, LayerFeatures] = {}
        for number, block in enumerate(self.model.blocks[: wanted[-1]], 1):
            if facet == "out":
                tokens = block(tokens)
                features = tokens
            else:
                features = self._projected(block, tokens, facet) if number in wanted else tokens
                tokens = block(tokens) if number < wanted[-1] else tokens
            if number in wanted:
                found[number] = self._split(self._normalised(features, norm), grid)
        return found

    def _checked(self, images: Tensor, wanted: list[int], facet: str, norm: str) -> tuple[int, int]:
        if facet != "out" and facet not in _PART:
            raise ValueError(f"facet {facet!r} is none of out, key, query, value")
        if norm not in ("none", "final", "layer"):
            raise ValueError(f"norm {norm!r} is none of none, final, layer")
        if not wanted or wanted[0] < 1 or wanted[-1] > self.depth:
            raise ValueError(f"blocks {wanted} must be one or more of 1..{self.depth} of {self.spec}")
        if images.ndim != 4 or not images.is_floating_point():
            raise ValueError(f"images must be float (B, 3, H, W), got {images.dtype} {tuple(images.shape)}")
        height, width = images.shape[-2:]
        if height % self.patch_size or width % self.patch_size or not height or not width:
            raise ValueError(f"image size {height}×{width} is not a multiple of the patch size {self.patch_size}")
        expected = tuple(self.model.patch_embed.img_size or (height, width))
        if not self.model.dynamic_img_size and (height, width) != expected:
            raise ValueError(
                f"image size {height}×{width}: {self.spec} was built for {expected[0]}×{expected[1]} alone; "
                "build it with dynamic_img_size=True"
            )
        return height // self.patch_size, width // self.patch_size

    def _projected(self, block: nn.Module, tokens: Tensor, facet: str) -> Tensor:
        """Queries, keys or values (B, N, heads·dh) of one block, from its part of the fused qkv projection alone."""
        attention = getattr(block, "attn", None)
        if not isinstance(block, TimmBlock) or not isinstance(attention, Attention):
            kind = f"{type(block).__name__} with {type(attention).__name__}"
            raise ConfigError(
                f"{self.spec}: facet {facet} needs timm's pre-norm block with fused qkv, not {kind}", "use facet out"
            )
        width = attention_width(attention)
        rows = slice(_PART[facet] * width, (_PART[facet] + 1) * width)
        bias = attention.qkv.bias
        projected = F.linear(block.norm1(tokens), attention.qkv.weight[rows], None if bias is None else bias[rows])
        if facet != "value":
            norm = attention.q_norm if facet == "query" else attention.k_norm
            projected = norm(projected.reshape(*tokens.shape[:2], attention.num_heads, -1)).flatten(-2)
        return projected

    def _normalised(self, features: Tensor, norm: str) -> Tensor:
        if norm == "layer":
            return F.layer_norm(features, features.shape[-1:], eps=1e-6)
        if norm == "final":
            norms = [n for n in (self.model.norm, self.model.fc_norm) if not isinstance(n, nn.Identity)]
            if not norms:
                raise ValueError(f"{self.spec} has no final norm: use norm none or layer")
            normalised: Tensor = norms[0](features)
            return normalised
        return features

    def _split(self, features: Tensor, grid: tuple[int, int]) -> LayerFeatures:
        cls = features[:, 0] if self.model.has_class_token else None
        return LayerFeatures(features[:, self.num_prefix_tokens :], cls, grid)
