"""Optimizers, their parameter groups and schedules."""

from dinoskip.optim.build import AdamWConfig, OptimizerConfig, build_optimizer, set_rates
from dinoskip.optim.groups import is_decayed, param_groups
from dinoskip.optim.schedules import cosine, linear_then_constant

__all__ = [
    "AdamWConfig",
    "OptimizerConfig",
    "build_optimizer",
    "cosine",
    "is_decayed",
    "linear_then_constant",
    "param_groups",
    "set_rates",
]
