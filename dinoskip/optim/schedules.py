"""Per-step schedules as arrays: a value depends on the step alone, so resuming needs nothing but the step."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from dinoskip.settings.config import Config

Beta = Annotated[float, Field(ge=0, lt=1)]


class Scheduled(Config):
    """Settings shared by all optimizers: DINO's schedules of learning rate and weight decay (docs/protocols.md)."""

    state_bytes: ClassVar[float] = 8.0
    """Bytes of optimizer state per parameter, about; the size of a checkpoint is estimated from it."""
    title: ClassVar[str] = ""
    """Title in figures; "": the optimizer's name."""
    lr: float = Field(5e-4, gt=0, description="peak learning rate per 256 images; scaled by global batch / 256")
    min_lr: float = Field(1e-6, ge=0, description="learning rate at the end of the cosine (not scaled)")
    weight_decay: float = Field(0.04, ge=0, description="at the first step")
    weight_decay_end: float = Field(0.4, ge=0, description="at the end of its cosine")
    decay_to: Literal["zero", "init"] = Field(
        "zero", description="what weight decay pulls to: zero, or the weights that training starts with"
    )


def cosine(base: float, final: float, total: int, warmup: int = 0, start: float = 0.0) -> np.ndarray:
    """Linear warm-up from ``start`` to ``base`` (both included), then half a cosine from ``base`` towards ``final``.

    Returns float64 of shape (total,). As in facebookresearch/dino, the first step after the warm-up has ``base``
    and the last step has not quite reached ``final`` (the cosine's argument stops one step short of pi).
    Raises ValueError unless 0 <= warmup <= total.
    """
    if not 0 <= warmup <= total:
        raise ValueError(f"warm-up of {warmup} steps does not fit in {total} steps")
    rise = np.linspace(start, base, warmup)
    rest = total - warmup
    fall = final + 0.5 * (base - final) * (1.0 + np.cos(np.pi * np.arange(rest) / max(rest, 1)))
    return np.concatenate([rise, fall])


def linear_then_constant(start: float, final: float, total: int, warmup: int) -> np.ndarray:
    """Linear from ``start`` to ``final`` (both included) over ``warmup`` entries, then ``final``: float64 (total,).

    A warm-up longer than ``total`` is cut, not squeezed: a shortened run begins like the long one.
    """
    values = np.full(max(total, warmup), final, dtype=np.float64)
    values[:warmup] = np.linspace(start, final, warmup)
    return values[:total]
