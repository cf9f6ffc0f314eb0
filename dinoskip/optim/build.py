"""Optimizers by configuration, and how a step's learning rate and weight decay reach them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import torch
from pydantic import BeforeValidator, Field
from torch import nn

from dinoskip.config import Added
from dinoskip.optim.anchor import decaying
from dinoskip.optim.groups import NamedParameters, by_layer, param_groups
from dinoskip.optim.kl_shampoo import KLShampooConfig
from dinoskip.optim.muon import MuonConfig
from dinoskip.optim.schedules import Beta, Scheduled
from dinoskip.optim.soap import EcsConfig, SoapConfig


class AdamWConfig(Scheduled):
    """AdamW with DINO's schedules (docs/protocols.md). ``lr`` is per 256 images of the global batch."""

    name: Literal["adamw"] = "adamw"
    betas: tuple[Beta, Beta] = Field((0.9, 0.999), description="averages of gradient and squared gradient")
    eps: float = Field(1e-8, gt=0, description="added to the denominator")
    layer_decay: Annotated[float, Added()] = Field(1.0, gt=0, le=1, description="rate of a block over the next's")

    def build(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        """Build the optimizer over ``groups`` of :func:`param_groups`."""
        groups = by_layer(groups, self.layer_decay)
        return torch.optim.AdamW(groups, lr=self.lr, betas=self.betas, eps=self.eps, fused=True)


def _named(value: Any) -> Any:
    """Settings without a name are AdamW's."""
    return {"name": "adamw", **value} if isinstance(value, dict) else value


AnyOptimizer = (
    AdamWConfig
    | SoapConfig
    | EcsConfig
    | KLShampooConfig
    | MuonConfig
)  # fmt: skip
"""The table of optimizers."""
OptimizerConfig = Annotated[AnyOptimizer, Field(discriminator="name"), BeforeValidator(_named)]


def build_optimizer(model: nn.Module | NamedParameters, config: OptimizerConfig) -> torch.optim.Optimizer:
    """Build the optimizer over a model's trainable parameters, in decay groups; :func:`set_rates` sets rates."""
    groups = param_groups(model)
    for group in groups:
        group["weight_decay"] = config.weight_decay if group["decayed"] else 0.0
    return decaying(config.build(groups), config.decay_to)


def set_rates(optimizer: torch.optim.Optimizer, lr: float, weight_decay: float) -> None:
    """Set this step's learning rate (times a group's ``lr_scale``, if it has one) and the decayed groups' decay."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get("lr_scale", 1.0)
        group["weight_decay"] = weight_decay if group["decayed"] else 0.0
