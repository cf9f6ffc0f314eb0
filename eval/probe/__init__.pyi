from .config import PROTOCOLS, ProbeConfig
from .evaluation import evaluate, evaluate_live
from .fit import LEARNING_RATES, ProbeResult, fit_probes
from .heads import LinearHead, load_heads, predict, save_heads

__all__ = [
    "LEARNING_RATES",
    "PROTOCOLS",
    "LinearHead",
    "ProbeConfig",
    "ProbeResult",
    "evaluate",
    "evaluate_live",
    "fit_probes",
    "load_heads",
    "predict",
    "save_heads",
]
