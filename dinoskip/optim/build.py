"""Optimizers by configuration, and how a step's learning rate and weight decay reach them."""

from __future__ import annotations

import torch
from torch import nn

from dinoskip.optim.anchor import decaying
from dinoskip.optim.config import OptimizerConfig
from dinoskip.optim.groups import NamedParameters, param_groups


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
