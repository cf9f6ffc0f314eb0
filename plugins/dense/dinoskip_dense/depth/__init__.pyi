from .bins import expected_depth, sig_loss
from .config import PROTOCOLS, DepthConfig
from .evaluation import evaluate
from .scores import NAMES, depth_scores

__all__ = ["NAMES", "PROTOCOLS", "DepthConfig", "depth_scores", "evaluate", "expected_depth", "sig_loss"]
