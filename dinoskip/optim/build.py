"""Optimizers by configuration, and how a step's learning rate and weight decay reach them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from dinoskip.optim.config import OptimizerConfig
from dinoskip.optim.groups import NamedParameters, param_groups
from dinoskip.runtime.distributed import local


@torch.no_grad()
def decaying(optimizer: torch.optim.Optimizer, to: str) -> torch.optim.Optimizer:
    """The optimizer itself; with ``to`` "init" its decay pulls the decayed groups to the weights that they have now.

    Around every step they stand as their distance from there, which is then what is decayed. A run that is resumed
    begins with the same weights before it loads its checkpoint, so nothing is stored.
    """
    if to == "init":
        decayed = [p for group in optimizer.param_groups if group["decayed"] for p in group["params"]]
        starts = {parameter: local(parameter.detach()).clone() for parameter in decayed}

        def shift(sign: int) -> None:
            moved = [parameter for parameter in starts if parameter.grad is not None]
            if moved:
                values: list[Tensor] = [local(parameter.detach()) for parameter in moved]
                torch._foreach_add_(values, [starts[parameter] for parameter in moved], alpha=sign)

        def before(*_: Any) -> None:
            shift(-1)

        def after(*_: Any) -> None:
            shift(1)

        optimizer.register_step_pre_hook(before)
        optimizer.register_step_post_hook(after)
    return optimizer


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
