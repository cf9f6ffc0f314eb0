"""Weighted skip connections, from all to none: x ← a x + attention(x), x ← a x + MLP(x), 0 ≤ a ≤ 1.

By depth as in *Decayed identity shortcuts* (arXiv:2404.10947, as its code counts: a value for every sublayer), and in
training time, which is **ours**. The branch has no weight; a is no parameter.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from dinoskip.models.family_blocks import skip_blocks
from dinoskip.models.vit import weigh_


def weigh_skips_(model: nn.Module, weights: Sequence[tuple[float, float]]) -> None:
    """Give the skips of every block (:func:`dinoskip.models.family_blocks.skip_blocks`) these weights, in place.

    Blocks of :func:`let_skips_change_` take them without being compiled again. Raises :class:`ConfigError` for blocks
    of other models, and for LayerScale where a weight is 0.
    """
    changing = []
    for block, pair in zip(skip_blocks(model), weights, strict=True):
        block.skip_weights = weigh_(block, pair)
        if block.changing is not None:
            changing.append((block.changing, pair))
    if changing:
        buffers = [buffer for buffer, _ in changing]
        values = torch.tensor([pair for _, pair in changing], dtype=torch.float64)
        torch._foreach_copy_(buffers, list(values.to(buffers[0]).unbind()))


def let_skips_change_(model: nn.Module) -> None:
    """Hold the skips' weights in a tensor from now on, which compiled code reads anew at every call; in place."""
    for block in skip_blocks(model):
        block.changing = next(block.parameters()).new_tensor(block.skip_weights)
