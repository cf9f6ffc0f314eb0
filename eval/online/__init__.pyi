from .config import OnlineConfig, OnlineKnnConfig, OnlineProbeConfig
from .evaluators import OnlineEvaluation, OnlineKnn, OnlineProbe, balanced_sample

__all__ = [
    "OnlineConfig",
    "OnlineEvaluation",
    "OnlineKnn",
    "OnlineKnnConfig",
    "OnlineProbe",
    "OnlineProbeConfig",
    "balanced_sample",
]
