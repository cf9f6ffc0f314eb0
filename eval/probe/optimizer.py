"""One optimizer step for many heads at once: learning rate and weight decay are vectors over the heads.

Every head moves as it would alone under ``torch.optim.AdamW`` or ``torch.optim.SGD``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from eval.probe.config import ProbeConfig

BETAS, _EPS = (0.9, 0.999), 1e-8  # AdamW's own defaults
_MOMENTUM = 0.9  # of SGD
_STEP_AT, _STEP_FACTOR = 0.8, 0.1  # of the schedule "step"


class HeadOptimizer:
    """AdamW or SGD with momentum on ``parameters``, tensors (any, L, ...) of L heads with ``rates`` and ``decays``."""

    def __init__(
        self,
        parameters: Sequence[torch.Tensor],
        rates: Sequence[float],
        decays: Sequence[float],
        *,
        name: str = "adamw",
        betas: tuple[float, float] = BETAS,
    ) -> None:
        device = parameters[0].device
        self.parameters = list(parameters)
        self.rates, self.decays = (  # torch.tensor(..., device=...) would wait for a GPU
            torch.tensor(x, dtype=torch.float64).to(device, non_blocking=True) for x in (rates, decays)
        )
        self._update = {"adamw": self._adamw, "sgd": self._sgd}[name]
        count = {"adamw": 2, "sgd": 1}[name]
        self._state = [[torch.zeros_like(p) for _ in range(count)] for p in parameters]
        self._steps = 0
        self._betas = betas

    def step(self, gradients: Sequence[torch.Tensor], scale: float, momentum: float | None = None) -> None:
        """Move every parameter against its gradient, learning rates × ``scale``. The gradients are used up.

        ``momentum`` is AdamW's first beta of this step on, where a schedule moves it.
        """
        self._steps += 1
        if momentum is not None:
            self._betas = (momentum, self._betas[1])
        for parameter, gradient, state in zip(self.parameters, gradients, self._state, strict=True):
            shape = (1, -1, *[1] * (parameter.ndim - 2))
            self._update(parameter, gradient, state, (self.rates * scale).view(shape), self.decays.view(shape))

    def _adamw(
        self, parameter: torch.Tensor, grad: torch.Tensor, state: list[torch.Tensor], rate: torch.Tensor,
        decay: torch.Tensor,
    ) -> None:  # fmt: skip
        (first, second), betas = state, self._betas
        parameter.mul_((1 - rate * decay).float())
        first.lerp_(grad, 1 - betas[0])
        second.mul_(betas[1]).addcmul_(grad, grad, value=1 - betas[1])
        root = second.sqrt().div_(math.sqrt(1 - betas[1] ** self._steps)).add_(_EPS)
        parameter.sub_(first.div(root).mul_((rate / (1 - betas[0] ** self._steps)).float()))

    def _sgd(
        self, parameter: torch.Tensor, grad: torch.Tensor, state: list[torch.Tensor], rate: torch.Tensor,
        decay: torch.Tensor,
    ) -> None:  # fmt: skip
        (velocity,) = state
        velocity.mul_(_MOMENTUM).add_(grad.add_(decay.float() * parameter))
        parameter.sub_(rate.float() * velocity)


def rate_scale(recipe: ProbeConfig, done: int, steps: int) -> float:
    """Return the factor on the learning rate of the step after ``done`` of ``steps``.

    The schedule of the whole run × done / (warm-up steps) while these last (at least 1e-6), as mmsegmentation does.
    """
    share = done / steps
    factor: float = {
        "cosine": 0.5 * (1 + math.cos(math.pi * share)),
        "poly": 1 - share,
        "step": _STEP_FACTOR if share >= _STEP_AT else 1.0,
        "constant": 1.0,
    }[recipe.schedule]
    rising = recipe.warmup * steps
    return factor * (max(done / rising, 1e-6) if done < rising else 1.0)  # mmcv's warmup_ratio there
