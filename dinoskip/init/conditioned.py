"""Conditioned Initialization for Attention (sec. 3.3): query, key and value matrices of condition number 1."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from dinoskip.errors import ConfigError
from dinoskip.init.assign import Assignments, in_place, plain_blocks
from dinoskip.init.config import NEEDS_SKIP, NEEDS_SKIP_HINT, PARTS, ConditionedInit
from dinoskip.init.orthogonal import haar
from dinoskip.init.skipless import fused_qkv
from dinoskip.randomness import torch_rng


def conditioned_tensors(
    model: nn.Module, settings: ConditionedInit, seed: int, others: Mapping[str, Tensor]
) -> Assignments:
    """Initialise query, key and value of every block, in place; returns the model.

    Row convention (``y = x W``), per head: W^Q_i and W^K_i independent Haar semi-orthogonal D × dh matrices;
    W^V_i = I_{D×dh}, the same for every head (``v="shared"``, to the letter). With ``v="blocked"`` head i takes
    coordinates i·dh to (i+1)·dh instead, so W^V = I_D. The qkv bias becomes zero; W^O, the MLP and the rest are left
    as they are, and so are those of query, key and value that are not among ``parts`` (the paper's ablation). Drawn in
    float64 on the CPU from ``seed`` and the layers' names, cast last.

    Raises :class:`ConfigError` for attention that is not plain, and for ``v="shared"`` where the attention has no
    skip connection: the value matrix of all heads together has rank dh, and tokens become alike within five blocks.
    """
    parts = settings.parts
    blocks = plain_blocks(model, "conditioned_", layer_scale=True)
    if settings.needs_skip and not all(block.skips_attention for block in blocks):
        raise ConfigError(f"conditioned_: {NEEDS_SKIP}", NEEDS_SKIP_HINT)
    for block in blocks:
        name, dim, heads = f"{block.prefix}.attn", block.dim, block.num_heads

        def projections(part: str, name: str = name, dim: int = dim, heads: int = heads) -> Tensor:
            draws = [haar(dim, dim // heads, torch_rng(seed, "init", name, part, head)) for head in range(heads)]
            return torch.stack(draws)

        value = torch.eye(dim, dtype=torch.float64)
        if settings.v == "shared":
            value = value[:, : dim // heads].repeat(1, heads)
        conditioned = fused_qkv(projections("query"), projections("key"), value)
        if set(parts) != set(PARTS):
            rows = zip(PARTS, conditioned.chunk(3), others[f"{name}.qkv.weight"].chunk(3), strict=True)
            conditioned = torch.cat([own if part in parts else other for part, own, other in rows])
        yield f"{name}.qkv.weight", conditioned
        yield from block.zero_biases("attn.qkv")


conditioned_ = in_place(conditioned_tensors, ConditionedInit, positional=("v",), keeps_others=True)
