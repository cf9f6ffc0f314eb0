from .config import PROTOCOLS, LinearConfig
from .evaluation import evaluate

__all__ = ["PROTOCOLS", "LinearConfig", "evaluate"]
