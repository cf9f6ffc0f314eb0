"""Optimizers, their parameter groups and schedules."""

from dinoskip.optim.build import AdamWConfig, OptimizerConfig, build_optimizer, set_rates
from dinoskip.optim.groups import is_decayed, param_groups
from dinoskip.optim.kl_shampoo import KLShampoo, KLShampooConfig
from dinoskip.optim.muon import MuonAdamW, MuonConfig
from dinoskip.optim.schedules import cosine, linear_then_constant
from dinoskip.optim.soap import SOAP, EcsConfig, SoapConfig

__all__ = [
    "SOAP",
    "AdamWConfig",
    "EcsConfig",
    "KLShampoo",
    "KLShampooConfig",
    "MuonAdamW",
    "MuonConfig",
    "OptimizerConfig",
    "SoapConfig",
    "build_optimizer",
    "cosine",
    "is_decayed",
    "linear_then_constant",
    "param_groups",
    "set_rates",
]
