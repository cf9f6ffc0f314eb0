from .config import PROTOCOLS, ProbeConfig
from .evaluation import evaluate
from .fit import LEARNING_RATES, ProbeResult, fit_probes
from .floor import make_floor
from .heads import LinearHead, head_classes, load_heads, predict, save_heads

__all__ = [
    "LEARNING_RATES",
    "PROTOCOLS",
    "LinearHead",
    "ProbeConfig",
    "ProbeResult",
    "evaluate",
    "fit_probes",
    "head_classes",
    "load_heads",
    "make_floor",
    "predict",
    "save_heads",
]
