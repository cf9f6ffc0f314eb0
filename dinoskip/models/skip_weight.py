"""Weighted skip connections, from a ViT's to none: x ← a x + attention(x), x ← a x + MLP(x), 0 ≤ a ≤ 1.

By depth as in *Decayed identity shortcuts* (arXiv:2404.10947, as its code counts: a value for every sublayer), and in
training time, which is **ours**. The branch has no weight; a is no parameter.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch
from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator
from timm.layers import LayerScale
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from dinoskip.config import Config
from dinoskip.errors import ConfigError

Sublayers = Literal["constant", "linear"]
Shape = Literal["linear", "cosine"]
Weights = list[tuple[float, float]]
"""Of attention and MLP, block by block."""


class SkipWeight(Config):
    """Weight a of the skip connections; a number alone is the constant ``end``.

    At step s of a training run it is start + (end - start) u for s < n = round(fraction · steps), with u = s/n
    (``linear``) or (1 - cos(π s/n))/2 (``cosine``), then exactly ``end``. With ``sublayers: linear`` that is the last
    sublayer's, and sublayer k = 0..2L-1 (attention, MLP, attention, ...) of L blocks has 1 - k/(2L-1) (1 - a).
    A teacher has its student's weight at every step. First weights are drawn, and measured on images, as for ``end``.
    """

    end: float = Field(0.0, ge=0, le=1, description="weight of the skips; 1: a ViT's, 0: none; last, where it changes")
    sublayers: Sublayers = Field("constant", description="all sublayers alike, or falling from 1 to it with depth")
    start: float = Field(1.0, ge=0, le=1, description="weight at the first step, where it changes in training")
    fraction: float = Field(0.0, ge=0, le=1, description="share of training in which it goes from start to end")
    shape: Shape = Field("linear", description="how it goes from start to end")

    @model_validator(mode="before")
    @classmethod
    def _number(cls, given: Any) -> Any:
        return {"end": given} if isinstance(given, int | float) and not isinstance(given, bool) else given

    @model_serializer(mode="wrap")
    def _without_what_says_nothing(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written: dict[str, Any] = dump(self)
        return written if self.fraction else {name: written[name] for name in ("end", "sublayers")}

    @property
    def first(self) -> float:
        """The weight before training."""
        return self.start if self.fraction else self.end

    def at(self, step: int, total: int) -> float:
        """The weight at step 0..total of a run of ``total`` optimizer steps."""
        steps = round(self.fraction * total)
        if step >= steps:
            return self.end
        share = step / steps if self.shape == "linear" else (1 - math.cos(math.pi * step / steps)) / 2
        return self.start + (self.end - self.start) * share

    def weights(self, value: float, depth: int) -> Weights:
        """What the sublayers of ``depth`` blocks have where the weight is ``value``."""
        if self.sublayers == "constant":
            return [(value, value)] * depth
        last = 2 * depth - 1
        line = [1 - index / last * (1 - value) for index in range(last)] + [value]
        return list(zip(line[::2], line[1::2], strict=True))

    def product(self, depth: int) -> float:
        """Product of all last weights: the share of the embedding that skips alone carry to the end of the network."""
        return math.prod(math.prod(pair) for pair in self.weights(self.end, depth))


def weigh_(block: nn.Module, weights: tuple[float, float]) -> tuple[float, float]:
    """Fit a block for skips of these weights, which are returned: no drop path without a skip to fall back on.

    Raises :class:`ConfigError` for a weight of 0 and LayerScale.
    """
    scale = getattr(block, "ls1", None)
    if isinstance(scale, LayerScale) and 0 in weights:
        raise ConfigError(
            f"init_values={scale.init_values}: LayerScale without a skip connection erases the signal",
            "leave init_values out for skipless models",
        )
    for name, weight in zip(("drop_path1", "drop_path2"), weights, strict=True):
        if weight == 0 and not isinstance(getattr(block, name), nn.Identity):  # compiled code notes a new module
            setattr(block, name, nn.Identity())
    return weights


def weigh_skips_(model: VisionTransformer, weights: Sequence[tuple[float, float]]) -> None:
    """Give the skips of every block of a ViT of ours these weights, in place.

    Blocks of :func:`let_skips_change_` take them without being compiled again. Raises :class:`ConfigError` for blocks
    of other models, and for LayerScale where a weight is 0.
    """
    changing = []
    block: Any
    for block, pair in zip(model.blocks, weights, strict=True):
        if not hasattr(block, "skip_weights"):
            raise ConfigError(f"skip_weight: {type(block).__name__} is no block of ours", "build it by create_model")
        block.skip_weights = weigh_(block, pair)
        if block.changing is not None:
            changing.append((block.changing, pair))
    if changing:
        buffers = [buffer for buffer, _ in changing]
        values = torch.tensor([pair for _, pair in changing], dtype=torch.float64)
        torch._foreach_copy_(buffers, list(values.to(buffers[0]).unbind()))


def let_skips_change_(blocks: Iterable[nn.Module]) -> None:
    """Hold the skips' weights in a tensor from now on, which compiled code reads anew at every call; in place."""
    for block in blocks:
        block.changing = next(block.parameters()).new_tensor(block.skip_weights)
