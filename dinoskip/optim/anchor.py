"""Weight decay towards the weights that training starts with, for any optimizer with decoupled decay."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dinoskip.distributed import local


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
