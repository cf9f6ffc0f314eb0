"""Conditioned Initialization for Attention (sec. 3.3): query, key and value matrices of condition number 1."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from dinoskip.errors import ConfigError
from dinoskip.init.assign import Assignments, attentions_for, in_place, skip_weights, zeros
from dinoskip.init.config import NEEDS_SKIP, NEEDS_SKIP_HINT, ConditionedInit, Part, Values
from dinoskip.init.orthogonal import haar
from dinoskip.models.attention_sites import Attention, Factor, write
from dinoskip.runtime.randomness import torch_rng


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
    present = attentions_for(model, "conditioned_", products=False, layer_scale=True)
    if settings.needs_skip and not all(skip_weights(model, attention.name)[0] for attention in present):
        raise ConfigError(f"conditioned_: {NEEDS_SKIP}", NEEDS_SKIP_HINT)
    parameters = {**dict(model.named_parameters()), **others}
    for attention in present:
        factors: dict[Part, Factor] = {
            "query": attention.query, "key": attention.key, "value": attention.value
        }  # fmt: skip
        values = {factors[part]: _factor(attention, part, factors[part], settings.v, seed) for part in settings.parts}
        yield from write(values, parameters)
        yield from zeros(model, attention.input_biases)


def _factor(attention: Attention, part: Part, factor: Factor, v: Values, seed: int) -> Tensor:
    """W_Q, W_K or W_V of all heads, float64 (out, in)."""
    width, inputs = attention.head_dim, factor.columns
    heads = range(factor.shape[0] // width)
    if part == "value":
        rows = torch.arange(factor.shape[0])
        columns = rows % width if v == "shared" else rows % inputs
        return torch.eye(inputs, dtype=torch.float64)[columns]
    draws = [haar(inputs, width, torch_rng(seed, "init", attention.name, part, head)) for head in heads]
    return torch.stack(draws).mT.flatten(0, 1)


conditioned_ = in_place(conditioned_tensors, ConditionedInit, positional=("v",), keeps_others=True)
