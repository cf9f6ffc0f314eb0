from .angles import NAMES, angular_loss, normal_scores
from .config import NormalsConfig
from .evaluation import evaluate

__all__ = ["NAMES", "NormalsConfig", "angular_loss", "evaluate", "normal_scores"]
