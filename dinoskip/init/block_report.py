"""Properties of each attention and MLP of a network: conditioning, logits, gains, and attention's input on images."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn

from dinoskip.errors import ConfigError
from dinoskip.models.attention_sites import Attention, Factor, attentions, mlps
from dinoskip.models.levels import inputs_and_outputs_of
from dinoskip.models.rank_collapse import condition_number, effective_rank, token_cosine


@dataclass(frozen=True)
class BlockReport:
    """One block. Row convention: logits are ``x W^Q_i (x W^K_i)ᵀ / √dh``; all numbers in float64.

    None stands for what a network does not have: logits between tokens where the softmax is over channels, an MLP.
    """

    block: int
    """1..depth: attentions in their order."""
    kappa_vo: float
    """Condition number of W^V W^O, at most 4.5e15."""
    vo_min: float
    """Smallest singular value of W^V W^O."""
    vo_max: float
    """Largest singular value of W^V W^O."""
    logit_diagonal: float | None
    """Mean logit of a LayerNormed token with itself: tr(W^Q W^Kᵀ)/√dh, mean over heads."""
    logit_spread: float | None
    """Standard deviation of the logits of unrelated tokens: ‖W^Q W^Kᵀ‖_F/√dh, mean over heads."""
    kappa_q: float
    """Condition number of W^Q_i, median over heads."""
    fc1_gain: float | None
    """Root mean square of fc1's singular values; 2 for the scaled uniform orthogonal one."""
    fc2_gain: float | None
    """Root mean square of fc2's singular values; 1 for the scaled uniform orthogonal one."""
    token_cosine: float | None = None
    """Mean cosine between different tokens that attention is given, on the images given."""
    effective_rank: float | None = None
    """Effective rank of the tokens that attention is given, on the images given."""


@torch.no_grad()
def report(model: nn.Module, images: Tensor | None = None) -> list[BlockReport]:
    """Describe the weights of every attention, and of the MLP that follows it, of any network whose attention is known.

    With ``images`` (B, 3, H, W), normalised, also the tokens that attention is given (in Swin those of a window),
    computed with the model as it is (its dtype, device and mode). Raises :class:`ConfigError` for networks without
    attention, and with q/k norms, gates and the like, with which these numbers would not mean what they say.
    """
    present, parameters = attentions(model), dict(model.named_parameters())
    if not present:
        raise ConfigError(f"report: a {type(model).__name__} is not supported: it has no attention that is known")
    for number, attention in enumerate(present, 1):
        if additions := [addition for addition in attention.additions if addition != "mixing of heads"]:
            raise ConfigError(f"report: the attention of block {number} is not plain: it has {' and '.join(additions)}")
    inputs: Mapping[str, Tensor] = {}
    if images is not None:
        parameter = next(model.parameters())
        sites = {attention.name: model.get_submodule(attention.name) for attention in present}
        inputs, _ = inputs_and_outputs_of(model, sites, images.to(parameter.device, parameter.dtype))
    rows = []
    for number, (attention, mlp) in enumerate(zip_longest(present, mlps(model)[: len(present)]), 1):
        measured: dict[str, Any] = {"fc1_gain": None, "fc2_gain": None}
        if mlp is not None:
            measured = {"fc1_gain": _gain(mlp.first, parameters), "fc2_gain": _gain(mlp.last, parameters)}
        if attention.name in inputs:
            tokens = inputs[attention.name]
            measured |= {"token_cosine": token_cosine(tokens), "effective_rank": effective_rank(tokens)}
        rows.append(BlockReport(block=number, **_weights(attention, parameters), **measured))
    return rows


def _weights(attention: Attention, parameters: Mapping[str, Tensor]) -> dict[str, Any]:
    query, key, value, output = attention.factors(parameters)
    root = query.shape[-1] ** 0.5
    product = value @ output
    values = torch.linalg.svdvals(product)
    logits: dict[str, float | None] = {"logit_diagonal": None, "logit_spread": None}
    if attention.over == "tokens" and query.shape == key.shape:
        squared = ((query.mT @ query) * (key.mT @ key)).sum((-2, -1))  # ‖W^Q W^Kᵀ‖_F² without forming it
        logits["logit_diagonal"] = float((query * key).sum((-2, -1)).mean()) / root
        logits["logit_spread"] = float(squared.clamp_min(0.0).sqrt().mean()) / root
    return logits | {
        "kappa_vo": float(condition_number(product).kappa),
        "vo_min": float(values[-1]),
        "vo_max": float(values[0]),
        "kappa_q": float(condition_number(query).kappa.median()),
    }


def _gain(factor: Factor, parameters: Mapping[str, Tensor]) -> float:
    return float(torch.linalg.matrix_norm(factor.read(parameters))) / math.sqrt(min(factor.shape))
