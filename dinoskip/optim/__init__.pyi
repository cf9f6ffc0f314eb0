from .build import build_optimizer, set_rates
from .config import AdamWConfig, EcsConfig, KLShampooConfig, MuonConfig, OptimizerConfig, SoapConfig
from .groups import is_decayed, param_groups
from .kl_shampoo import KLShampoo
from .muon import MuonAdamW
from .on_paper import shares_on_paper
from .schedules import cosine, linear_then_constant
from .soap import SOAP

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
    "shares_on_paper",
]
