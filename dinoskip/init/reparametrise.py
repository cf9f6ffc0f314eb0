"""The same function with larger weights: an optimizer whose steps do not scale with the weights then moves it less.

Adam's step of a weight is about the learning rate, whatever the weight's size. Without skip connections every layer
stands behind a LayerNorm, so that scales can be moved into the weights without changing what the network computes.
"""

from __future__ import annotations

import torch
from torch import nn

from dinoskip.errors import ConfigError
from dinoskip.init.assign import plain_blocks
from dinoskip.init.config import NEEDS_NO_SKIP


@torch.no_grad()
def reparametrise_(model: nn.Module, k1: float = 1.0, k2: float = 1.0, c1: float = 1.0, c2: float = 1.0) -> nn.Module:
    """Scale the weights of every block without changing the function, in place; returns the model.

    qkv.weight × ``k1`` with norm1 / k1, fc1.weight × ``k2`` with norm2 / k2: exact but for rounding, with and without
    skips. proj × ``c1`` and fc2 × ``c2`` (weight and bias): the LayerNorm that follows divides by them, but for its
    epsilon, where nothing is added in between. Raises :class:`ConfigError` for factors that are not above 0, for c1 and
    c2 with skips, and for blocks outside the papers.
    """
    if min(k1, k2, c1, c2) <= 0:
        raise ConfigError(f"reparametrise_: k1={k1}, k2={k2}, c1={c1}, c2={c2} must be above 0")
    for block in plain_blocks(model, "reparametrise_"):
        for factor, skip, name in ((c1, block.skips_attention, "c1"), (c2, block.skips_mlp, "c2")):
            if factor != 1 and skip:
                raise ConfigError(f"reparametrise_: {name}={factor:g} {NEEDS_NO_SKIP}", f"leave {name} out")
        parts = (("norm1", "attn.qkv", "attn.proj", k1, c1), ("norm2", "mlp.fc1", "mlp.fc2", k2, c2))
        for norm, reader, writer, inner, outer in parts:
            for parameter in model.get_submodule(f"{block.prefix}.{norm}").parameters():
                parameter.div_(inner)
            block.layers[reader].weight.mul_(inner)
            for parameter in block.layers[writer].parameters():
                parameter.mul_(outer)
    return model
