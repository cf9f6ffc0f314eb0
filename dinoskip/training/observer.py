"""What evaluates a network while it trains."""

from __future__ import annotations

from typing import Protocol

from torch import nn

from dinoskip.distributed import World


class Observer(Protocol):
    """Evaluates a network while it trains, on every rank; the same numbers for the same weights."""

    score: str  # the measure, more is better, that tells the best checkpoint

    def __call__(self, network: nn.Module, here: World) -> dict[str, float]:
        """Measures of ``network`` (eval mode, on ``here.device``) by name, equal on all ranks."""
