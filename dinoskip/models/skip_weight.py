"""Weighted skip connections, from a ViT's to none: x ← a x + attention(x), x ← a x + MLP(x), 0 ≤ a ≤ 1.

By depth as in *Decayed identity shortcuts* (arXiv:2404.10947, as its code counts: a value for every sublayer), and in
training time, which is **ours**. The branch has no weight; a is no parameter.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from timm.layers import LayerScale
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from dinoskip.errors import ConfigError


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
