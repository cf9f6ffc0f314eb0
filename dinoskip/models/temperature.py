"""The depth-aware temperature of attention (The Quantization Benefits of Residual-Free Transformers, sec. 4)."""

from __future__ import annotations

from typing import get_args

from torch import Tensor, nn

from dinoskip.errors import ConfigError
from dinoskip.settings.vit_config import TemperatureConfig, TemperatureMode


# beta is that of "The Quantization Benefits of Residual-Free Transformers".
def temperatures(
    depth: int, beta: float = 1.1, *, first_layer: int = 1, mode: TemperatureMode = "multiply"
) -> list[float]:
    """τ_l = beta^-l for ``depth`` layers l = first_layer, first_layer + 1, ...: what the logits are multiplied by.

    As printed, τ softens attention with depth. ``mode="divide"`` is the other reading: logits divided by τ_l,
    attention sharper with depth; the factors returned are then beta^l. Raises :class:`ConfigError` for beta ≤ 0.
    """
    if mode not in get_args(TemperatureMode):
        raise ConfigError(f"temperature mode {mode!r} is none of {', '.join(get_args(TemperatureMode))}")
    if beta <= 0:
        raise ConfigError(f"temperature base beta={beta} must be above 0")
    sign = -1 if mode == "multiply" else 1
    return [beta ** (sign * layer) for layer in range(first_layer, first_layer + depth)]


class Temperature(nn.Module):
    """Queries times a constant: a factor on the logits in fused attention, too, where timm ignores ``scale``."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, queries: Tensor) -> Tensor:
        """Scale queries of any shape."""
        return queries * self.factor

    def extra_repr(self) -> str:
        """Return the text that printing the module shows."""
        return f"factor={self.factor:.4g}"


def temper_(blocks: nn.Sequential, config: TemperatureConfig) -> None:
    """Put a :class:`Temperature` after the queries of every block of a ViT, in place of the q norm that it lacks."""
    factors = temperatures(len(blocks), config.beta, first_layer=config.first_layer, mode=config.mode)
    for block, factor in zip(blocks, factors, strict=True):
        attention = block.get_submodule("attn")
        if not isinstance(attention.q_norm, nn.Identity):
            raise ConfigError("model.temperature: these blocks have a norm of their queries", "leave one of them out")
        attention.q_norm = Temperature(factor)
