"""Lion (Chen et al. 2023, arXiv:2302.06675): the sign of an interpolated momentum, with decoupled weight decay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch

from dinoskip.optim.schedules import Beta, Scheduled


class LionConfig(Scheduled):
    """Lion with DINO's schedules; wants a learning rate 3 to 10 times below AdamW's."""

    name: Literal["lion"] = "lion"
    betas: tuple[Beta, Beta] = (0.9, 0.99)

    def build(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        """Build the optimizer over ``groups`` of :func:`dinoskip.optim.groups.param_groups`."""
        return Lion(groups, lr=self.lr, betas=self.betas)


class Lion(torch.optim.Optimizer):
    """One momentum a parameter, in its dtype."""

    def __init__(self, params: Any, lr: float, betas: tuple[float, float]) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for parameter in [one for one in group["params"] if one.grad is not None]:
                momentum = self.state[parameter].setdefault("momentum", torch.zeros_like(parameter))
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.sub_(momentum.lerp(parameter.grad, 1 - beta1).sign_(), alpha=group["lr"])
                momentum.lerp_(parameter.grad, 1 - beta2)
        return loss
