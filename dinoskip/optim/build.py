"""Optimizers by configuration, and how a step's learning rate and weight decay reach them."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import nn

from dinoskip.config import Config
from dinoskip.optim.groups import NamedParameters, param_groups

Beta = Annotated[float, Field(ge=0, lt=1)]


class AdamWConfig(Config):
    """AdamW with DINO's schedules (docs/protocols.md). ``lr`` is per 256 images of the global batch."""

    name: Literal["adamw"] = "adamw"
    lr: float = Field(5e-4, gt=0, description="peak learning rate per 256 images; scaled by global batch / 256")
    min_lr: float = Field(1e-6, ge=0, description="learning rate at the end of the cosine (not scaled)")
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    eps: float = Field(1e-8, gt=0)
    weight_decay: float = Field(0.04, ge=0, description="at the first step")
    weight_decay_end: float = Field(0.4, ge=0, description="at the end of its cosine")


# The type of an experiment's ``optimizer`` key; becomes a union told apart by ``name`` with the second optimizer.
OptimizerConfig = AdamWConfig


def build_optimizer(model: nn.Module | NamedParameters, config: OptimizerConfig) -> torch.optim.Optimizer:
    """Build the optimizer over the trainable parameters of ``model`` (or named parameters), in decay groups.

    Learning rate and decay start at the configuration's base values; :func:`set_rates` sets them per step.
    """
    groups = param_groups(model)
    for group in groups:
        group["weight_decay"] = config.weight_decay if group["decayed"] else 0.0
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=True)


def set_rates(optimizer: torch.optim.Optimizer, lr: float, weight_decay: float) -> None:
    """Set this step's learning rate (all groups) and weight decay (the decayed group)."""
    for group in optimizer.param_groups:
        group["lr"] = lr
        group["weight_decay"] = weight_decay if group["decayed"] else 0.0
