"""Conditioned Initialization for Attention (sec. 3.3): query, key and value matrices of condition number 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, get_args

import torch
from pydantic import AfterValidator, Field
from torch import Tensor, nn

from dinoskip.config import Added, Config, no_duplicates
from dinoskip.errors import ConfigError
from dinoskip.init.assign import Assignments, assign, plain_blocks
from dinoskip.init.default import default_tensors
from dinoskip.init.orthogonal import haar
from dinoskip.init.skipless import fused_qkv
from dinoskip.randomness import torch_rng

Values = Literal["shared", "blocked"]
Part = Literal["query", "key", "value"]
PARTS: tuple[Part, ...] = get_args(Part)
NEEDS_SKIP = 'v="shared" needs the attention\'s skip connection: its W^V has the rank of one head'
NEEDS_SKIP_HINT = 'keep the skip, or v="blocked" (not the paper\'s), or skipless_'


class ConditionedInit(Config):
    """See :func:`dinoskip.init.conditioned_`."""

    name: Literal["conditioned"] = "conditioned"
    v: Values = Field("shared", description="W^V of a head: the first coordinates for every head, or blocks of its own")
    parts: Annotated[tuple[Part, ...], Field(min_length=1), AfterValidator(no_duplicates), Added()] = Field(
        ("query", "key", "value"), description="matrices that are conditioned; the others start by the default"
    )

    @property
    def needs_skip(self) -> bool:
        """Whether the attention must keep its skip connection."""
        return self.v == "shared" and "value" in self.parts

    def tensors(self, model: nn.Module, seed: int) -> Assignments:
        """What this method assigns."""
        default = {} if set(self.parts) == set(PARTS) else dict(default_tensors(model, seed))
        return conditioned_tensors(model, self.v, self.parts, default, seed=seed)


def conditioned_(
    model: nn.Module, v: Values = "shared", *, parts: Sequence[Part] = ("query", "key", "value"), seed: int = 0
) -> nn.Module:
    """Initialise query, key and value of every block, in place; returns the model.

    Row convention (``y = x W``), per head: W^Q_i and W^K_i independent Haar semi-orthogonal D × dh matrices;
    W^V_i = I_{D×dh}, the same for every head (``v="shared"``, to the letter). With ``v="blocked"`` head i takes
    coordinates i·dh to (i+1)·dh instead, so W^V = I_D. The qkv bias becomes zero; W^O, the MLP and the rest are left
    as they are, and so are those of query, key and value that are not among ``parts`` (the paper's ablation). Drawn in
    float64 on the CPU from ``seed`` and the layers' names, cast last.

    Raises :class:`ConfigError` for attention that is not plain, and for ``v="shared"`` where the attention has no
    skip connection: the value matrix of all heads together has rank dh, and tokens become alike within five blocks.
    """
    if v not in get_args(Values):
        raise ConfigError(f"conditioned_: v={v!r} is none of {', '.join(get_args(Values))}")
    if not parts or not set(parts) <= set(PARTS):
        raise ConfigError(f"conditioned_: parts={list(parts)} must be some of {', '.join(PARTS)}")
    present = {name: parameter.detach().double().cpu() for name, parameter in model.named_parameters()}
    assign(model, conditioned_tensors(model, v, parts, present, seed=seed))
    return model


def conditioned_tensors(
    model: nn.Module, v: Values, parts: Sequence[Part], others: Mapping[str, Tensor], *, seed: int
) -> Assignments:
    """What :func:`conditioned_` assigns, parameter by parameter; rows not of ``parts`` are those of ``others``."""
    blocks = plain_blocks(model, "conditioned_", layer_scale=True)
    if v == "shared" and "value" in parts and not all(block.skips_attention for block in blocks):
        raise ConfigError(f"conditioned_: {NEEDS_SKIP}", NEEDS_SKIP_HINT)
    for block in blocks:
        name, dim, heads = f"{block.prefix}.attn", block.dim, block.num_heads

        def projections(part: str, name: str = name, dim: int = dim, heads: int = heads) -> Tensor:
            draws = [haar(dim, dim // heads, torch_rng(seed, "init", name, part, head)) for head in range(heads)]
            return torch.stack(draws)

        value = torch.eye(dim, dtype=torch.float64)
        if v == "shared":
            value = value[:, : dim // heads].repeat(1, heads)
        conditioned = fused_qkv(projections("query"), projections("key"), value)
        if set(parts) != set(PARTS):
            rows = zip(PARTS, conditioned.chunk(3), others[f"{name}.qkv.weight"].chunk(3), strict=True)
            conditioned = torch.cat([own if part in parts else other for part, own, other in rows])
        yield f"{name}.qkv.weight", conditioned
        yield from block.zero_biases("attn.qkv")
